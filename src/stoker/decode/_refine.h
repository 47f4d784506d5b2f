/* Undoes the Huffman code of the refining scans of a progressive JPEG (ISO 10918-1, G.2), which take half of its time:
 * one more bit for every coefficient that is known already, and the few that appear between them. libjpeg walks along
 * all 63 of every block and branches on every bit, which no processor can predict. Here a mask names the known ones, a
 * symbol's place is counted from them at once, and the bits are only collected until the block is done.
 *
 * The bytes are not trusted: nothing is written outside the block, and what libjpeg would warn of is refused. For
 * x86-64 only: without its vectors this is slower than libjpeg. */

#include <emmintrin.h>
#include <stdint.h>
#include <string.h>

#include <jpeglib.h>

#define QUICK_BITS 9
#define ONES UINT64_C(0x0101010101010101)

/* Where the n-th coefficient lies in its block, and which one lies there. */
static const uint8_t place_of[DCTSIZE2] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};
static const uint8_t number_of[DCTSIZE2] = {
    0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30,
    41, 43, 9,  11, 18, 24, 31, 40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38,
    46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49, 57, 58, 62, 63,
};

/* The coded bytes of a scan: FF is followed by 00, or by FF which means nothing. Behind them come zeros. */
typedef struct {
    const uint8_t *at, *end;
    uint64_t held; /* the next bits, from the top; zeros below */
    int count;     /* how many they are */
    int made_up;   /* how many of them, the last ones, stood nowhere */
} Bits;

/* As `fill`, byte by byte. Takes and gives the whole, so that the caller's can stay in registers. */
static Bits fetched(Bits bits) {
    while (bits.count < 56) {
        uint64_t byte = 0;
        if (bits.at == bits.end) {
            bits.made_up += 8;
        } else if ((byte = *bits.at++) == 0xFF) {
            while (bits.at < bits.end && *bits.at == 0xFF) bits.at++;
            if (bits.at < bits.end) bits.at++;
        }
        bits.held |= byte << (56 - bits.count);
        bits.count += 8;
    }
    return bits;
}

/* 56 to 63 bits held. */
static inline void fill(Bits *bits) {
    if (bits->end - bits->at >= 8) {
        uint64_t eight = 0;
        for (int n = 0; n < 8; n++) eight = eight << 8 | bits->at[n];
        if (!((~eight - ONES) & eight & ONES << 7)) { /* none of them is FF */
            bits->held |= eight >> bits->count; /* the last of them in part, and once more with the next */
            bits->at += (63 - bits->count) >> 3;
            bits->count |= 56;
            return;
        }
    }
    *bits = fetched(*bits);
}

/* The next *n* bits, 0 to 56, of those held. */
static inline uint64_t take(Bits *bits, int n) {
    const uint64_t found = bits->held >> 1 >> (63 - n);
    bits->held <<= n;
    bits->count -= n;
    return found;
}

/* A Huffman code: of the short ones symbol and length at a look, of the others what is needed to count. */
typedef struct {
    uint16_t quick[1 << QUICK_BITS]; /* length << 8 | symbol; 0: longer */
    int last[17], offset[17];        /* by length: the highest code, and a code's place less the code */
    const uint8_t *symbols;
} Codes;

static int make_codes(Codes *codes, const JHUFF_TBL *table) {
    memset(codes->quick, 0, sizeof codes->quick);
    codes->symbols = table->huffval;
    int code = 0, place = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        codes->offset[length] = place - code;
        if (place + table->bits[length] > 256 || code + table->bits[length] > 1 << length) return 0;
        for (int n = table->bits[length]; n; n--, code++, place++)
            for (int rest = 0; length <= QUICK_BITS && rest < 1 << (QUICK_BITS - length); rest++)
                codes->quick[(code << (QUICK_BITS - length)) + rest] = (uint16_t)(length << 8 | table->huffval[place]);
        codes->last[length] = code - 1;
    }
    return 1;
}

/* The next symbol, -1 where no code fits. */
static inline int next_symbol(Bits *bits, const Codes *codes) {
    const unsigned quick = codes->quick[bits->held >> (64 - QUICK_BITS)];
    if (quick) {
        take(bits, (int)(quick >> 8));
        return (int)(quick & 0xFF);
    }
    for (int length = QUICK_BITS + 1; length <= 16; length++) {
        const int code = (int)(bits->held >> (64 - length));
        if (code <= codes->last[length]) {
            take(bits, length);
            return codes->symbols[(codes->offset[length] + code) & 0xFF];
        }
    }
    return -1;
}

/* Bit n is set where the n-th coefficient is not zero. */
static inline uint64_t known_of(const JCOEF *block) {
    uint64_t places = 0, known = 0;
    for (int at = 0; at < DCTSIZE2; at += 16) {
        const __m128i *here = (const __m128i *)(block + at);
        const __m128i bytes = _mm_packs_epi16(_mm_loadu_si128(here), _mm_loadu_si128(here + 1));
        places |= (uint64_t)(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_setzero_si128())) ^ 0xFFFF) << at;
    }
    for (; places; places &= places - 1) known |= UINT64_C(1) << number_of[__builtin_ctzll(places)];
    return known;
}

/* What the scan says of all blocks alike, and how many more of them bring nothing new. */
typedef struct {
    int first, last; /* coefficients */
    uint64_t band;   /* they and those between */
    int more;        /* the bit that is added */
    unsigned run;
} Refinement;

/* Appends the next *n* bits, up to 63, to *line*. */
static inline uint64_t appended(Bits *bits, uint64_t line, int n) {
    if (n > bits->count) fill(bits);
    for (; n > bits->count; n--) {
        if (!bits->count) fill(bits);
        line = line << 1 | take(bits, 1);
    }
    return line << n | take(bits, n);
}

/* How many of *before*, which ascend and are 127 behind the *count* of them, are no more than *most*. */
static inline int up_to(const int8_t *before, int count, int most) {
    int found = 0;
    const __m128i limit = _mm_set1_epi8((char)most);
    for (int at = 0; at < count; at += 16) {
        const __m128i more = _mm_cmpgt_epi8(_mm_load_si128((const __m128i *)(before + at)), limit);
        const __m128i sums = _mm_sad_epu8(_mm_add_epi8(more, _mm_set1_epi8(1)), _mm_setzero_si128());
        found += _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4);
    }
    return found;
}

/* False: no such code, or something new behind the last coefficient. */
static inline int refine_block(Bits *bits, const Codes *codes, Refinement *scan, JCOEF *block) {
    uint64_t known = known_of(block) & scan->band, line = 0;
    int count = 0, met = 0; /* of the known ones: all, those whose bit was read */
    if (scan->run) {
        for (uint64_t rest = known; rest; rest &= rest - 1) count++;
    } else {
        _Alignas(16) int8_t before[DCTSIZE2]; /* of each known one: the zeros before it */
        memset(before, 127, sizeof before);
        for (uint64_t rest = known; rest; rest &= rest - 1, count++)
            before[count] = (int8_t)(__builtin_ctzll(rest) - scan->first - count);
        const int all = scan->last + 1 - scan->first;
        for (int passed = 0; passed + met < all;) { /* zeros */
            fill(bits);
            const int symbol = next_symbol(bits, codes);
            if (symbol & ~0xF1) return 0; /* -1 too */
            if (!(symbol & 1) && symbol < 0xF0) {
                scan->run = (1u << (symbol >> 4)) + (unsigned)take(bits, symbol >> 4);
                break;
            }
            const int fresh = symbol & 1 ? (int)take(bits, 1) * 2 - 1 : 0;
            passed += symbol >> 4;
            const int now = up_to(before, count, passed);
            line = appended(bits, line, now - met);
            met = now;
            if (fresh) {
                if (passed + met >= all) return 0;
                block[place_of[scan->first + passed + met]] = (JCOEF)(fresh * scan->more);
            }
            passed++;
        }
    }
    if (scan->run) {
        line = appended(bits, line, count - met);
        scan->run--;
    }
    for (; known; known &= known - 1) {
        JCOEF *one = block + place_of[__builtin_ctzll(known)];
        const int value = *one, sign = value >> 15, more = -(int)(line >> --count & 1) & scan->more & ~value;
        *one = (JCOEF)(value + ((more ^ sign) - sign)); /* away from zero; no branch, for nobody could predict it */
    }
    return bits->count >= bits->made_up;
}

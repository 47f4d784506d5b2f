/* Decodes a part of a JPEG: the rows above it are skipped, the columns beside it are not transformed, and what lies
 * below it is not even read, in no scan of a progressive one. Optional: without this module whole pictures are decoded
 * (pixels.py).
 *
 * Strict: a warning of libjpeg refuses the picture, as an error does; the caller then takes the way that says why. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#ifdef __SSE2__
#include "_refine.h"
#endif

#if JPEG_LIB_VERSION >= 70
#define ROWS_OF_BLOCKS(info) ((unsigned)((info)->max_v_samp_factor * (info)->min_DCT_v_scaled_size))
#else
#define ROWS_OF_BLOCKS(info) ((unsigned)((info)->max_v_samp_factor * (info)->min_DCT_scaled_size))
#endif

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf refused;
    int scan_left; /* its rest was jumped over: what libjpeg says until it ends is our doing */
} Refusing;

static void refuse(j_common_ptr info) { longjmp(((Refusing *)info->err)->refused, 1); }

static void refuse_warnings(j_common_ptr info, int level) {
    if (level < 0 && !((Refusing *)info->err)->scan_left) refuse(info);
}

static void say_nothing(j_common_ptr info) { (void)info; }

typedef struct {
    JDIMENSION left, top, width, height;
} Area;

/* Moves the source to the marker that ends the scan: libjpeg then fills up the scan's rows with nothing, which is
 * quick. False where no marker follows. */
static int leave_scan(struct jpeg_source_mgr *source) {
    const JOCTET *at = source->next_input_byte, *end = at + source->bytes_in_buffer;
    while ((at = memchr(at, 0xFF, (size_t)(end - at))) && end - at > 1) {
        if (at[1] != 0x00 && at[1] != 0xFF) {
            source->bytes_in_buffer = (size_t)(end - at);
            source->next_input_byte = at;
            return 1;
        }
        at++;
    }
    return 0;
}

#ifdef __SSE2__
/* The first block of a component. */
static JCOEF *first_block(struct jpeg_decompress_struct *info, jvirt_barray_ptr blocks) {
    return info->mem->access_virt_barray((j_common_ptr)info, blocks, 0, 1, TRUE)[0][0];
}

/* Undoes a refining scan, which begins at the source, down to the *needed* rows, and has libjpeg pass over it. */
static int refine_scan(struct jpeg_decompress_struct *info, unsigned needed) {
    const jpeg_component_info *component = info->cur_comp_info[0];
    jvirt_barray_ptr blocks = jpeg_read_coefficients(info)[component->component_index];
    const uint64_t band = ~UINT64_C(0) << info->Ss & ~UINT64_C(0) >> (DCTSIZE2 - 1 - info->Se);
    Refinement scan = {info->Ss, info->Se, band, 1 << info->Al, 0};
    Bits bits = {info->src->next_input_byte, NULL, 0, 0, 0};
    Codes codes;
    if (!make_codes(&codes, info->ac_huff_tbl_ptrs[component->ac_tbl_no]) || !leave_scan(info->src)) return 0;
    bits.end = info->src->next_input_byte;
    while (bits.end > bits.at && bits.end[-1] == 0xFF) bits.end--; /* filling before the marker */
    JDIMENSION rows = needed * (JDIMENSION)component->v_samp_factor;
    if (rows > component->height_in_blocks) rows = component->height_in_blocks;
    for (JDIMENSION row = 0; row < rows; row++) {
        JBLOCKROW block = info->mem->access_virt_barray((j_common_ptr)info, blocks, row, 1, TRUE)[0];
        for (JDIMENSION column = 0; column < component->width_in_blocks; column++)
            if (!refine_block(&bits, &codes, &scan, block[column])) return 0;
    }
    if (rows == component->height_in_blocks && (bits.at < bits.end || bits.count - bits.made_up > 7)) return 0;
    JBLOCK kept; /* where libjpeg looks for the first block's bits it finds none, and takes them for zeros */
    memcpy(kept, first_block(info, blocks), sizeof kept);
    ((Refusing *)info->err)->scan_left = 1;
    for (int status = 0; status != JPEG_SCAN_COMPLETED;)
        if ((status = jpeg_consume_input(info)) == JPEG_SUSPENDED) return 0;
    ((Refusing *)info->err)->scan_left = 0;
    memcpy(first_block(info, blocks), kept, sizeof kept);
    return 1;
}
#endif

/* Reads all scans of a progressive picture, each down to the lowest row that the area needs and no further. False where
 * afterwards a coefficient is not known to its last bit: then a scan may have been cut off in what was not read. */
static int read_scans(struct jpeg_decompress_struct *info, const Area *area) {
    Refusing *error = (Refusing *)info->err;
    const unsigned needed = (area->top + area->height - 1) / ROWS_OF_BLOCKS(info) + 1;
    int status;
    while ((status = jpeg_consume_input(info)) != JPEG_REACHED_EOI) {
        if (status == JPEG_SUSPENDED) return 0;
        if (status == JPEG_SCAN_COMPLETED) error->scan_left = 0;
        if (info->restart_interval) continue; /* a scan with markers of its own */
#ifdef __SSE2__
        const int refining = status == JPEG_REACHED_SOS && info->Ss && info->Ah && !info->arith_code;
        if (refining && !refine_scan(info, needed)) return 0;
#endif
        if (status != JPEG_ROW_COMPLETED || error->scan_left || info->input_iMCU_row < needed) continue;
        if (!info->unread_marker && !leave_scan(info->src)) return 0;
        error->scan_left = 1;
    }
    for (int component = 0; component < info->num_components; component++)
        for (int coefficient = 0; coefficient < DCTSIZE2; coefficient++)
            if (info->coef_bits[component][coefficient]) return 0;
    return 1;
}

/* Whether the area lies in the picture. */
static int inside(const struct jpeg_decompress_struct *info, const Area *area) {
    return area->width && area->height && area->width <= info->output_width &&
           area->left <= info->output_width - area->width && area->height <= info->output_height &&
           area->top <= info->output_height - area->height;
}

/* Fills *out* with rows of RGB. *area* says what is wanted, and afterwards what is there: at least as wide, since
 * columns come in blocks. 0: refused. -1: *out* is too small. */
static int decode(const unsigned char *data, size_t length, unsigned denominator, Area *area, unsigned char *out,
                  size_t room) {
    struct jpeg_decompress_struct info;
    Refusing error;
    volatile int result = 0;
    info.err = jpeg_std_error(&error.base);
    error.scan_left = 0;
    error.base.error_exit = refuse;
    error.base.emit_message = refuse_warnings;
    error.base.output_message = say_nothing;
    jpeg_create_decompress(&info);
    if (!setjmp(error.refused)) {
        jpeg_mem_src(&info, data, length);
        jpeg_read_header(&info, TRUE);
        info.out_color_space = JCS_RGB;
        info.scale_num = 1;
        info.scale_denom = denominator;
        info.buffered_image = info.progressive_mode; /* so that the scans are ours to read */
        jpeg_start_decompress(&info);
        if (inside(&info, area) && (!info.buffered_image || read_scans(&info, area))) {
            if (info.buffered_image) jpeg_start_output(&info, info.input_scan_number);
            jpeg_crop_scanline(&info, &area->left, &area->width);
            const size_t stride = (size_t)area->width * 3;
            if (stride * area->height > room) {
                result = -1;
            } else if (!area->top || jpeg_skip_scanlines(&info, area->top) == area->top) {
                JDIMENSION row = 0;
                while (row < area->height) {
                    unsigned char *line = out + stride * row;
                    row += jpeg_read_scanlines(&info, &line, 1);
                }
                result = 1;
            }
        }
    }
    jpeg_destroy_decompress(&info);
    return result;
}

static PyObject *decode_region(PyObject *module, PyObject *arguments) {
    Py_buffer data, out;
    unsigned denominator;
    Area area;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*I(IIII)w*", &data, &denominator, &area.left, &area.top, &area.width,
                          &area.height, &out))
        return NULL;
    int result;
    Py_BEGIN_ALLOW_THREADS result =
        decode(data.buf, (size_t)data.len, denominator, &area, out.buf, (size_t)out.len);
    Py_END_ALLOW_THREADS PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    if (result < 0) {
        PyErr_SetString(PyExc_ValueError, "the buffer is too small for the region");
        return NULL;
    }
    if (!result) Py_RETURN_NONE;
    return Py_BuildValue("(II)", area.left, area.width);
}

static PyMethodDef methods[] = {
    {"decode_region", decode_region, METH_VARARGS,
     "decode_region(jpeg, denominator, (left, top, width, height), out) -> (left, width) | None\n\n"
     "Decode that area of the picture at 1/denominator into *out*, RGB rows [height, width, 3] of the width that is\n"
     "returned with where they begin: columns come in blocks. None when libjpeg has anything to say about the bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_region", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__region(void) { return PyModule_Create(&definition); }

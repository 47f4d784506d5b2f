/* Decodes a part of a JPEG: the rows above it are skipped, the columns beside it are not transformed, and what lies below
 * it is not even read. Optional: without this module whole pictures are decoded (pixels.py).
 *
 * Strict: a warning of libjpeg refuses the picture, as an error does; the caller then takes the way that says why. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf refused;
} Refusing;

static void refuse(j_common_ptr info) { longjmp(((Refusing *)info->err)->refused, 1); }

static void refuse_warnings(j_common_ptr info, int level) {
    if (level < 0) refuse(info);
}

static void say_nothing(j_common_ptr info) { (void)info; }

typedef struct {
    JDIMENSION left, top, width, height;
} Area;

/* Fills *out* with rows of RGB. *area* says what is wanted, and afterwards what is there: at least as wide, since columns
 * come in blocks. 0: refused. -1: *out* is too small. */
static int decode(const unsigned char *data, size_t length, unsigned denominator, Area *area, unsigned char *out,
                  size_t room) {
    struct jpeg_decompress_struct info;
    Refusing error;
    volatile int result = 0;
    info.err = jpeg_std_error(&error.base);
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
        jpeg_start_decompress(&info);
        if (area->width && area->height && area->width <= info.output_width &&
            area->left <= info.output_width - area->width && area->height <= info.output_height &&
            area->top <= info.output_height - area->height) {
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

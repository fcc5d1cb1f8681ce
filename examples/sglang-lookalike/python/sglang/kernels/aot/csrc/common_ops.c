#include <Python.h>

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "common_ops", "The compiled part.", -1, 0};

PyMODINIT_FUNC PyInit_common_ops(void) { return PyModule_Create(&module); }

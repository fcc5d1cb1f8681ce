#include <Python.h>

static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(1100); }

static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, "The architecture's number."}, {0}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "The compiled part.", -1, methods};

PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&module); }

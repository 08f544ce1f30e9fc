#include <Python.h>
#include <omp.h>
#include <vector>
int f() { return omp_get_max_threads(); }

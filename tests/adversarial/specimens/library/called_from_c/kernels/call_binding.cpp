#include <torch/csrc/utils/pybind.h>

#include "../binding_registry.h"

static pybind11::object call(pybind11::object function, pybind11::list arguments) {
  return function(*pybind11::tuple(arguments));
}

static void register_call(pybind11::module& m) { m.def("call", &call); }
REGISTER_BINDING(call, register_call);

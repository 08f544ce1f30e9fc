// One of each thing that bindings do with pybind11.
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <torch/csrc/utils/pybind.h>
#include <torch/types.h>

#include <pybind11/functional.h>
#include <pybind11/operators.h>

#include "../binding_registry.h"

namespace py = pybind11;

struct A {
  virtual ~A() = default;
  virtual int go(int a) { return a + x; }
  A operator+(const A& other) const {
    A sum;
    sum.x = x + other.x;
    return sum;
  }
  int x = 1;
};

struct Overriding : A {
  int go(int a) override { PYBIND11_OVERRIDE(int, A, go, a); }
};

struct B {
  std::vector<float> data;
};

enum class E { one, two };

struct MyError : std::runtime_error {
  using runtime_error::runtime_error;
};

static void register_everything(py::module& m) {
  py::class_<A, Overriding>(m, "A", py::dynamic_attr())
      .def(py::init<>())
      .def("go", &A::go, py::arg("a") = 3)
      .def_readwrite("x", &A::x)
      .def(py::self + py::self)
      .def(py::pickle([](const A& a) { return py::make_tuple(a.x); },
                      [](py::tuple state) {
                        A a;
                        a.x = state[0].cast<int>();
                        return a;
                      }))
      .def("__repr__", [](const A& a) { return py::str("A({})").format(a.x); });
  m.def("call", [](A& a, int value) { return a.go(value); });
  py::class_<B, std::shared_ptr<B>>(m, "B", py::buffer_protocol())
      .def(py::init<>())
      .def_buffer([](B& b) {
        auto format = py::format_descriptor<float>::format();
        return py::buffer_info(b.data.data(), sizeof(float), format, 1, {b.data.size()}, {sizeof(float)});
      })
      .def_property(
          "data", [](B& b) { return b.data; }, [](B& b, std::vector<float> given) { b.data = given; })
      .def("__iter__", [](B& b) { return py::make_iterator(b.data.begin(), b.data.end()); }, py::keep_alive<0, 1>());
  py::enum_<E>(m, "E").value("one", E::one).value("two", E::two).export_values();
  py::register_exception<MyError>(m, "MyError");
  m.def("throws", [] { throw MyError("x"); });
  m.def("stops", [] { throw py::stop_iteration("s"); });
  m.def("missing", [](py::object o) {
    try {
      o.attr("no")();
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_AttributeError)) throw std::runtime_error(error.what());
      throw;
    }
  });
  m.def("count", [](py::args args, const py::kwargs& kwargs) { return args.size() + kwargs.size(); });
  m.def("after", [](const std::function<int(int)>& f) -> std::function<int(int)> { return [f](int a) { return f(a) + 1; }; });
  m.def("both", [](std::map<std::string, std::optional<int>> a, std::variant<int, std::string> v) {
    py::gil_scoped_acquire held;
    return py::dict(py::arg("a") = a, py::arg("v") = v);
  });
  m.def("tensors", [](std::vector<torch::Tensor> tensors, at::ScalarType, at::IntArrayRef sizes) {
    return std::make_tuple(tensors[0].numel(), sizes.size());
  });
  m.def("over", [](int) { return 1; });
  m.def("over", [](std::string) { return 2; });
}

REGISTER_BINDING(everything, register_everything);

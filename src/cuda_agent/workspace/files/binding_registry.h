// Collects the bindings of all kernels: each registers itself by static initialisation, binding.cpp applies them.
// Fixed file: do not edit.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

class BindingRegistry {
 public:
  using Function = std::function<void(pybind11::module&)>;

  static BindingRegistry& getInstance() {
    static BindingRegistry instance;
    return instance;
  }

  void registerBinding(const std::string& name, Function function) {
    bindings_.emplace_back(name, std::move(function));
  }

  // Throws when two bindings share a name: the import then fails with that message instead of one hiding the other.
  void applyBindings(pybind11::module& m) {
    for (size_t i = 0; i < bindings_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (bindings_[i].first == bindings_[j].first) {
          throw std::runtime_error("two bindings are registered as '" + bindings_[i].first + "'");
        }
      }
      bindings_[i].second(m);
    }
  }

 private:
  BindingRegistry() = default;
  BindingRegistry(const BindingRegistry&) = delete;
  BindingRegistry& operator=(const BindingRegistry&) = delete;

  std::vector<std::pair<std::string, Function>> bindings_;
};

class BindingRegistrar {
 public:
  BindingRegistrar(const std::string& name, BindingRegistry::Function function) {
    BindingRegistry::getInstance().registerBinding(name, std::move(function));
  }
};

// At namespace scope of a kernels/*_binding.cpp: REGISTER_BINDING(my_op, register_my_op);
#define REGISTER_BINDING(name, function) static BindingRegistrar binding_registrar_##name(#name, function);

// The Python module `cuda_extension`: everything that the kernels registered. Fixed file: do not edit.
#include "binding_registry.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "kernels of this workspace";
  BindingRegistry::getInstance().applyBindings(m);
}

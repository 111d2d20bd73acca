#include "common/base/dynamic_library.h"

#include <dlfcn.h>

namespace coordd {

absl::StatusOr<DynamicLibrary> DynamicLibrary::OpenWith(const std::string& name, int flags) {
  void* const handle = dlopen(name.c_str(), flags);
  if (handle == nullptr) {
    const char* why = dlerror();
    return absl::NotFoundError(why != nullptr ? why : name + ": not loaded");
  }
  return DynamicLibrary(handle);
}

absl::StatusOr<DynamicLibrary> DynamicLibrary::Open(const std::string& name) {
  return OpenWith(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
}

absl::StatusOr<DynamicLibrary> DynamicLibrary::OpenLoaded(const std::string& name) {
  return OpenWith(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
}

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

void* DynamicLibrary::Symbol(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace coordd

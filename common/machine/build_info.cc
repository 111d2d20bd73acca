#include "common/machine/build_info.h"

#include <grpcpp/grpcpp.h>
#include <openssl/crypto.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/dynamic_library.h"
#include "common/base/status_macros.h"
#include "common/machine/build_components.h"
#include "common/machine/grpc_weaknesses.h"
#include "common/machine/nccl_versions.h"
#include "common/machine/ucx_library.h"

namespace coordd {
namespace {

constexpr char kCudaDriver[] = "libcuda.so.1";

absl::Status Lacks(absl::string_view library, absl::string_view symbol) {
  return absl::NotFoundError(absl::StrCat(library, " has no ", symbol));
}

absl::StatusOr<DynamicLibrary> OpenNccl(const Environment& environment) {
  if (auto loaded = DynamicLibrary::OpenLoaded(kNcclLibrary); loaded.ok()) return loaded;
  const auto named = environment.find(kNcclVariable);
  if (named == environment.end() || named->second.empty())
    return DynamicLibrary::Open(kNcclLibrary);
  auto opened = DynamicLibrary::Open(named->second);
  if (opened.ok()) return opened;
  return absl::NotFoundError(absl::StrCat(kNcclVariable, ": ", opened.status().message()));
}

absl::StatusOr<std::string> LoadedNccl(const Environment& environment) {
  auto library = OpenNccl(environment);
  if (!library.ok()) return library.status();
  auto* const get_version = library->Function<int(int*)>("ncclGetVersion");
  if (get_version == nullptr) return Lacks(kNcclLibrary, "ncclGetVersion");
  int number = 0;
  if (get_version(&number) != 0) return absl::UnavailableError("ncclGetVersion failed");
  if (number < kNcclVersionMin) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL is ", NcclVersionText(number), ", expected ",
                     NcclVersionText(kNcclVersionMin), " or later"));
  }
  std::string text = NcclVersionText(number);
  const char* separator = " without ";
  for (const char* function : kNcclLaterFunctions) {
    if (library->Function<void()>(function) != nullptr) continue;
    absl::StrAppend(&text, separator, function);
    separator = ", ";
  }
  return text;
}

absl::StatusOr<std::string> LoadedUcx(const Environment& environment, std::string& note) {
  const auto library = OpenUcx(environment);
  if (!library.ok()) return library.status();
  COORDD_ASSIGN_OR_RETURN(const UcxVersion version, UcxVersionOf(*library));
  note = UcxTriedText(version);
  return version.ToString();
}

// The driver decides what works; it is asked itself, since the runtime's cudaGetDeviceCount leaves
// its argument untouched without one.
absl::StatusOr<std::string> LoadedCuda() {
  auto library = DynamicLibrary::Open(kCudaDriver);
  if (!library.ok()) return library.status();
  auto* const init = library->Function<int(unsigned)>("cuInit");
  auto* const driver_version = library->Function<int(int*)>("cuDriverGetVersion");
  auto* const device_count = library->Function<int(int*)>("cuDeviceGetCount");
  if (init == nullptr) return Lacks(kCudaDriver, "cuInit");
  if (driver_version == nullptr) return Lacks(kCudaDriver, "cuDriverGetVersion");
  if (device_count == nullptr) return Lacks(kCudaDriver, "cuDeviceGetCount");
  if (const int error = init(0); error != 0) {
    return absl::UnavailableError(absl::StrCat("the driver reports error ", error, " (cuInit)"));
  }
  int devices = 0, number = 0;
  if (device_count(&devices) != 0 || devices == 0) {
    return absl::UnavailableError("the driver sees no device");
  }
  if (driver_version(&number) != 0) return absl::UnavailableError("cuDriverGetVersion failed");
  return absl::StrCat(number / 1000, ".", number % 1000 / 10);
}

// Libraries that programs are linked with are there, or the program would not have started;
// Protobuf, Abseil and prometheus-cpp have no function that tells their version.
absl::StatusOr<std::string> LoadedVersion(absl::string_view name, const Environment& environment,
                                          std::string& note) {
  if (name == "gRPC") {
    note = GrpcWeaknessText(grpc::Version());
    return grpc::Version();
  }
  if (name == "OpenSSL") return std::string(OpenSSL_version(OPENSSL_VERSION_STRING));
  if (name == "UCX") return LoadedUcx(environment, note);
  if (name == "CUDA") return LoadedCuda();
  if (name == "NCCL") return LoadedNccl(environment);
  return std::string();
}

}  // namespace

std::string NcclVersionText(int number) {
  // NCCL counts 10000 * major since 2.9, 1000 * major before.
  const int unit = number >= 10000 ? 10000 : 1000;
  return absl::StrCat(number / unit, ".", number % unit / 100, ".", number % 100);
}

bool IsBuiltIn(absl::string_view component) {
  for (const BuiltComponent& built : kBuiltComponents)
    if (component == built.name) return built.version[0] != '\0';
  return false;
}

std::vector<Component> BuildComponents(const Environment& environment) {
  std::vector<Component> components;
  for (const BuiltComponent& built : kBuiltComponents) {
    Component component;
    component.name = built.name;
    component.built = built.version;
    component.why_not = built.why_not;
    if (!component.built.empty()) {
      component.why_not.clear();
      absl::StatusOr<std::string> loaded =
          LoadedVersion(component.name, environment, component.note);
      component.available = loaded.ok();
      if (loaded.ok()) {
        component.loaded = *std::move(loaded);
      } else {
        component.why_not =
            absl::StrCat("built for ", component.built, ", but ", loaded.status().message());
      }
    }
    components.push_back(std::move(component));
  }
  return components;
}

std::string ToLine(const Component& component) {
  if (!component.available) return absl::StrCat("[ ] ", component.name, ": ", component.why_not);
  if (component.built.empty()) return absl::StrCat("[X] ", component.name, ": ", component.loaded);
  std::string line = absl::StrCat("[X] ", component.name, " ", component.built, " (built)");
  if (!component.loaded.empty()) absl::StrAppend(&line, ", ", component.loaded, " (loaded)");
  if (!component.note.empty()) absl::StrAppend(&line, ", ", component.note);
  return line;
}

std::string ComponentsToJson(const std::vector<Component>& components) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Component& c : components) {
    rows.push_back({{"name", c.name},
                    {"available", c.available},
                    {"built", c.built},
                    {"loaded", c.loaded},
                    {"note", c.note},
                    {"why_not", c.why_not}});
  }
  return rows.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace coordd

#include "server/model/effects.h"

namespace coordd {
namespace {

size_t Bytes(const StoreSet& set) { return set.key.size() + set.value.size(); }
size_t Bytes(const StoreGet& get) { return get.key.size(); }
size_t Bytes(const StoreAdd& add) { return add.key.size(); }
size_t Bytes(const StoreDeletePrefix& all) { return all.prefix.size(); }
size_t Bytes(const StoreCompareSet& set) {
  return set.key.size() + set.desired.size() +
         (set.expected.has_value() ? set.expected->size() : 0);
}
size_t Bytes(const StoreAppend& append) { return append.key.size() + append.value.size(); }
size_t Bytes(const StoreDelete& one) { return one.key.size(); }
size_t Bytes(const StoreLook& look) {
  size_t bytes = 0;
  for (const std::string& key : look.keys) bytes += key.size() + 2;
  return bytes;
}
size_t Bytes(const StoreCount& count) { return count.prefix.size(); }

absl::string_view NameOf(const StoreSet&) { return "Set"; }
absl::string_view NameOf(const StoreGet&) { return "Get"; }
absl::string_view NameOf(const StoreAdd&) { return "Add"; }
absl::string_view NameOf(const StoreDeletePrefix&) { return "DeletePrefix"; }
absl::string_view NameOf(const StoreCompareSet&) { return "CompareSet"; }
absl::string_view NameOf(const StoreAppend&) { return "Append"; }
absl::string_view NameOf(const StoreDelete&) { return "Delete"; }
absl::string_view NameOf(const StoreLook&) { return "Look"; }
absl::string_view NameOf(const StoreCount&) { return "Count"; }

}  // namespace

size_t BytesOf(const decltype(StoreCall::request)& request) {
  return std::visit([](const auto& one) { return Bytes(one); }, request);
}

absl::string_view Name(const decltype(StoreCall::request)& request) {
  return std::visit([](const auto& one) { return NameOf(one); }, request);
}

}  // namespace coordd

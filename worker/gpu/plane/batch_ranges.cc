#include "worker/gpu/plane/batch_ranges.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace coordd {

void BatchRanges::Attach(const Environment& environment) {
  const auto profiler = environment.find(kNvtxVariable);
  if (profiler != environment.end()) nvtx_ = Nvtx::Attach(profiler->second);
}

void BatchRanges::Begin(const BatchJob& batch, std::optional<NvtxRange>& range) {
  if (nvtx_ == nullptr) return;
  const ProcessSetId set = batch.process_set();
  if (named_.insert(set).second) {
    nvtx_->NameCategory(
        set, ToInt(set) == 0 ? std::string("all ranks") : absl::StrCat("process set ", ToInt(set)));
  }
  int64_t bytes = 0;
  for (const TensorJob& tensor : batch.tensors()) bytes += SizeBytes(tensor.spec());
  const TensorSpec& first = batch.tensors().front().spec();
  const size_t more = batch.tensors().size() - 1;
  range.emplace(*nvtx_, set,
                absl::StrCat(Name(first.kind), " ", first.name,
                             more > 0 ? absl::StrCat(" +", more) : "", ", ", bytes, " bytes"),
                bytes);
}

}  // namespace coordd

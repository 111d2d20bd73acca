#include "common/net/http_connection.h"

#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coordd {
namespace {

// Lets the kernel have the rest, so that a reader, however slow, is no longer ours to wait for;
// as far as the system allows (net.core.wmem_max, 208 KiB as a rule).
void WidenFor(HttpConnection& one) {
  one.widened = true;
  constexpr size_t kMost = 1 << 20;
  const int bytes = static_cast<int>(std::min(one.bytes.size(), kMost));
  int has = 0;
  socklen_t size = sizeof(has);
  const bool known = getsockopt(one.fd.get(), SOL_SOCKET, SO_SNDBUF, &has, &size) == 0;
  if (known && has / 2 < bytes)
    setsockopt(one.fd.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

constexpr size_t kSizesMax = 64;

std::string KeyOf(const HttpRequest& request) {
  return absl::StrCat(request.method, " ", request.path, "?", request.query);
}

}  // namespace

size_t AnswerSizes::Of(const HttpRequest& request) const {
  const auto found = sizes_.find(KeyOf(request));
  return found == sizes_.end() ? 0 : found->second;
}

void AnswerSizes::Note(const HttpRequest& request, size_t bytes) {
  if (!IsCounted(bytes)) {
    sizes_.erase(KeyOf(request));
    return;
  }
  if (sizes_.size() >= kSizesMax) sizes_.clear();  // whatever strangers ask for
  sizes_[KeyOf(request)] = bytes;
}

bool WriteAnswer(HttpConnection& one) {
  while (one.written < one.bytes.size()) {
    const ClientStream::Moved sent =
        one.stream->Write(absl::string_view(one.bytes).substr(one.written));
    if (IsAwaited(sent.outcome) && !one.widened) {
      WidenFor(one);
      continue;
    }
    if (IsAwaited(sent.outcome)) return false;
    if (sent.outcome != ClientStream::Outcome::kDone) return true;
    one.written += sent.bytes;
  }
  one.stream->End();
  return true;
}

}  // namespace coordd

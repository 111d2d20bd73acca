// A secret in a file that may be replaced while it is used, and which callers bring in a header of
// HTTP. (io)
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

namespace coordd {

// Thread-safe.
class WatchedToken {
 public:
  // Errors are ReadTokenFile's, whose words `named_by` begins. INVALID_ARGUMENT, too: no header can
  // carry the token, as one of two lines.
  static absl::StatusOr<std::shared_ptr<WatchedToken>> Open(std::string named_by, std::string path);

  // Whether Open would take it. A pipe is not read.
  static absl::Status Check(absl::string_view named_by, const std::string& path);

  bool Is(absl::string_view brought) const;
  // Reads the file again; whether it holds another token, which counts from now on. An error is
  // as Open's: the token that was there stays. INVALID_ARGUMENT, too: it is a pipe now, where
  // a file was read. A pipe that was read first, which cannot be read twice, is not read again.
  // What does not end with a line's end may be half of a token that is being written: it counts
  // once the next call finds the same.
  absl::StatusOr<bool> Reload();

 private:
  WatchedToken(std::string named_by, std::string path, bool from_pipe, std::string token)
      : named_by_(std::move(named_by)),
        path_(std::move(path)),
        from_pipe_(from_pipe),
        token_(std::move(token)) {}

  const std::string named_by_, path_;
  const bool from_pipe_;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::string token_ ABSL_GUARDED_BY(mu_);
  std::string half_ ABSL_GUARDED_BY(mu_);  // was found without a line's end; empty: nothing was
};

}  // namespace coordd

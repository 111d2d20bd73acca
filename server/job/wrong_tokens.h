// Who has brought wrong tokens, and how long he has to wait before the next try.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/model/access_rules.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe. Counts for each caller (identity and host) and
// job ("": all of them, asked for at once): who guesses at one job keeps neither others out of it
// nor himself out of another. After kFree wrong ones he waits kFirst, twice as long after each
// further one, kLongest at most; a try in that time says nothing of its token, unless that is right
// and hard to guess: whose job it is does not wait for others of his name and host.
class WrongTokens {
 public:
  static constexpr int kFree = 128;  // a node's processes may all have an old one
  static constexpr absl::Duration kFirst = absl::Seconds(1);
  static constexpr absl::Duration kLongest = absl::Minutes(1);
  // As long after the last one nothing of it is left.
  static constexpr absl::Duration kForgotten = absl::Minutes(10);
  static constexpr size_t kMost = 4096;  // then the one whose last try is longest ago makes room

  // Whether a token has so many bytes, with so many different ones among them. Of those that are
  // made by chance (32 hexadecimal digits are 128 bits) nobody guesses one, at however many tries a
  // second the door lets through; passwords are shorter.
  static constexpr size_t kHardBytes = 32, kDifferentBytes = 8;
  static bool IsHardToGuess(absl::string_view token);

  // UNAVAILABLE: he has to wait, how long, and why.
  absl::Status MayTry(const Caller& caller, const std::string& job, absl::Time now) const;
  void Note(const Caller& caller, const std::string& job, absl::Time now);
  // The right one came over this connection, which may try from now on whatever others of the same
  // name and host do: it has nothing to guess.
  void Proved(const Caller& caller, const std::string& job);

 private:
  struct Tries {
    int64_t wrong = 0;
    absl::Time last;
    absl::Time next;  // may be tried
  };
  static std::string Key(const Caller& caller, const std::string& job);
  void Forget(absl::Time now);

  // So many connections are known; then all are forgotten, and prove it again.
  static constexpr size_t kMostProved = 1 << 18;
  static std::string Connection(const Caller& caller, const std::string& job);

  std::map<std::string, Tries> tries_;
  absl::flat_hash_set<std::string> proved_;
};

}  // namespace coordd

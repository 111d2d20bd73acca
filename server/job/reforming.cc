#include "server/job/reforming.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {

void Reforming::Begin(const ReformingOptions& options, bool same_run) {
  const bool unfinished = same_run && unfinished_;
  *this = Reforming(options);
  unfinished_ = unfinished;
}

void Reforming::Ended() {
  Reforming after(options_);
  after.none_follows_ = std::move(none_follows_);
  after.state_lost_ = std::move(state_lost_);
  after.unfinished_ = unfinished_;
  *this = std::move(after);
}

void Reforming::Failed(const std::string& reason, bool silent, Rank witness, absl::Time now) {
  const bool first = blame_until_ == absl::InfiniteFuture();
  const bool first_silence = silent && (first || !silence_);
  if (!first && !first_silence) return;  // the first one counts; where one is silent, that one
  blame_ = reason;
  witness_ = witness;
  silence_ = silent;
  blame_until_ = now + (silent ? kSilenceWindow : kBlameWindow);
}

std::optional<std::string> Reforming::Verdict(absl::Time now) const {
  if (now < blame_until_) return std::nullopt;
  return blame_;
}

bool Reforming::Broken(const std::string& reason, bool lost, bool left, absl::Time now) {
  blame_until_ = absl::InfiniteFuture();
  const bool fruitful = lost || now - formed_at_ >= kFruitfulLife;
  // Not one whose members came back and said that it was over: nobody could be blamed.
  counted_ = !fruitful && !suspended_;
  fruitless_ = lost ? 0 : fruitful ? 1 : fruitless_ + (counted_ ? 1 : 0);
  const bool too_often = fruitless_ > kMaxFruitlessGenerations;
  unfinished_ = wanted() && !left;
  open_ = unfinished_ && !too_often && !limit_reached();
  if (unfinished_ && limit_reached()) {
    none_follows_ = absl::StrCat("--reset-limit ", options_.reset_limit, " is reached");
  } else if (unfinished_ && too_often) {
    none_follows_ = absl::StrCat(kMaxFruitlessGenerations + 1,
                                 " generations in a row have failed though nobody was lost");
  }
  if (!open_) return false;
  reason_ = reason;
  report_by_ = now + options_.report_window;
  return true;
}

void Reforming::Gathering(absl::Time now) {
  report_by_ = absl::InfiniteFuture();
  form_by_ = now + options_.timeout;
}

void Reforming::Formed(absl::Time now) {
  if (open_) ++resets_;
  Close();
  suspended_ = unfinished_ = false;
  none_follows_.clear();
  formed_at_ = now;
}

void Reforming::Suspended() {
  blame_until_ = absl::InfiniteFuture();
  if (!open_) {
    suspended_ = true;
    return;
  }
  Close();
  if (counted_) --fruitless_;
}

void Reforming::GiveUp(const std::string& why) {
  none_follows_ = why;
  Close();
}

void Reforming::Close() {
  open_ = false;
  report_by_ = form_by_ = absl::InfiniteFuture();
}

absl::Time Reforming::NextDeadline() const {
  return std::min({blame_until_, report_by_, form_by_});
}

void Reforming::Forgive(absl::Duration gap) { report_by_ += gap; }

}  // namespace coordd

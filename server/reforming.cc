#include "server/reforming.h"

#include <algorithm>

namespace coordd {

void Reforming::Failed(const std::string& reason, bool silent, absl::Time now) {
  const bool first = blame_until_ == absl::InfiniteFuture();
  const bool first_silence = silent && (first || !silence_);
  if (!first && !first_silence) return;  // the first one counts; where one is silent, that one
  blame_ = reason;
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
  open_ = wanted() && !left && fruitless_ <= kMaxFruitlessGenerations && !limit_reached();
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
  GiveUp();
  suspended_ = false;
  formed_at_ = now;
}

void Reforming::Suspended() {
  blame_until_ = absl::InfiniteFuture();
  if (!open_) {
    suspended_ = true;
    return;
  }
  GiveUp();
  if (counted_) --fruitless_;
}

void Reforming::GiveUp() {
  open_ = false;
  report_by_ = form_by_ = absl::InfiniteFuture();
}

absl::Time Reforming::NextDeadline() const {
  return std::min({blame_until_, report_by_, form_by_});
}

void Reforming::Forgive(absl::Duration gap) { report_by_ += gap; }

}  // namespace coordd

// What it takes to train on when workers are lost and when others come: a step is made wholly or
// not at all, and each generation begins with what its rank 0 has. So no step is lost, at most one
// is repeated, and the weights are those of one process, whoever was killed.
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "client/examples/digits/trainer.h"

namespace digits {
namespace {

// In which the next generation has to form.
constexpr std::chrono::seconds kPatience(60);
constexpr std::chrono::seconds kGoodbye(10);

}  // namespace

void Trainer::Recover(const coordd::Error& lost, const Reports& reports) {
  interrupted_at_ = std::chrono::steady_clock::now();
  std::string reason = lost.what();
  for (;;) {
    try {
      GoOn(reason, worker_->TryAwaitGeneration(kPatience), reports);
      return;
    } catch (const coordd::Error& again) {  // another one is lost meanwhile
      if (again.code() != COORDD_GENERATION_CHANGED) throw;
      reason = again.what();
    }
  }
}

bool Trainer::ChangeMembers(const Reports& reports) {
  interrupted_at_ = std::chrono::steady_clock::now();
  if (worker_->drain_seconds() >= 0) {
    worker_->Shutdown(kGoodbye);
    return false;
  }
  GoOn("", worker_->TryChangeMembers(kPatience), reports);
  return true;
}

// A signal's handler may do no more than set a number.
void Trainer::LeaveIfAsked() {
  if (options_.must_end == nullptr || *options_.must_end == 0 || asked_to_leave_) return;
  asked_to_leave_ = true;
  worker_->AskToLeave(kPatience, "SIGTERM");
}

void Trainer::GoOn(const std::string& reason, coordd::Expected<coordd_placement_t> next,
                   const Reports& reports) {
  const coordd_placement_t place = std::move(next).value();
  rank_ = place.rank;
  size_ = place.size;
  members_change_ = false;
  const int64_t steps_lost = Sync();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - interrupted_at_;
  reports.change({reason, place.generation, size_, took.count(), progress_.epochs_done + 1,
                  progress_.image, steps_lost});
}

}  // namespace digits

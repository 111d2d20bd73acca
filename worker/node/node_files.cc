#include "worker/node/node_files.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "worker/base/arena_allocator.h"
#include "worker/handover/shm_segment.h"
#include "worker/node/node_arena.h"

namespace coordd {
namespace {

// Where in its arena a rank has its file, and which part of the file it is; as a handover's note.
struct Place {
  int64_t arena_offset_bytes = 0;
  int64_t file_offset_bytes = 0;
  int64_t size_bytes = 0;
};

std::string Encode(const Place& place) {
  return absl::StrCat(place.arena_offset_bytes, " ", place.file_offset_bytes, " ",
                      place.size_bytes);
}

std::optional<Place> Decode(const std::string& note) {
  const std::vector<std::string> words = absl::StrSplit(note, ' ');
  Place place;
  if (words.size() == 3 && absl::SimpleAtoi(words[0], &place.arena_offset_bytes) &&
      absl::SimpleAtoi(words[1], &place.file_offset_bytes) &&
      absl::SimpleAtoi(words[2], &place.size_bytes)) {
    return place;
  }
  return std::nullopt;
}

// The store refuses the keys of a generation that is over: somebody is gone.
absl::Status Gone(const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status)) return status;
  return absl::UnavailableError(status.message());
}

absl::Status NotByAll(absl::string_view what, const absl::Status& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("a memfd was not ", what, " by all ranks of the node before: ", why.message(),
                   "; expected another generation"));
}

}  // namespace

NodeFiles::NodeFiles(NodeArena& arena, Rank self, Rank first, Clock& clock,
                     const std::atomic<bool>& aborted)
    : arena_(arena), self_(self), first_(first), clock_(clock), aborted_(aborted) {}

absl::StatusOr<std::byte*> NodeFiles::TakeRange(int64_t size_bytes) {
  const auto found = spare_.lower_bound(static_cast<size_t>(size_bytes));
  if (found != spare_.end()) return spare_.extract(found).mapped();
  COORDD_ASSIGN_OR_RETURN(const absl::Span<std::byte> fresh, arena_.Allocate(size_bytes));
  ranges_.emplace(fresh.data(), fresh.size());
  return fresh.data();
}

void NodeFiles::GiveBackRange(std::byte* begin) { spare_.emplace(ranges_.at(begin), begin); }

absl::StatusOr<absl::Span<std::byte>> NodeFiles::MapOwn(const FileRange& file) {
  COORDD_RETURN_IF_ERROR(CheckFileRange(file));
  COORDD_ASSIGN_OR_RETURN(std::byte* const begin, TakeRange(file.size_bytes));
  absl::StatusOr<absl::Span<std::byte>> mapped = MapFileRange(file, begin);
  if (!mapped.ok()) GiveBackRange(begin);
  return mapped;
}

absl::StatusOr<absl::Span<std::byte>> NodeFiles::MapOf(const ShmPeer& peer) const {
  const std::optional<Place> place = Decode(peer.note);
  if (!place.has_value()) return absl::Span<std::byte>();  // it says itself why it has none
  const FileRange file = {peer.segment.get(), place->file_offset_bytes, place->size_bytes};
  COORDD_RETURN_IF_ERROR(CheckFileRange(file));
  const NodeMemory memory = arena_.memories()[IndexOf(peer.rank)];
  const int64_t memory_bytes = static_cast<int64_t>(memory.size());
  const int64_t begin = place->arena_offset_bytes;
  constexpr int64_t kPage = ArenaAllocator::kGranularityBytes;
  if (begin < NodeBoard::SizeBytes() || begin % kPage != 0 || begin > memory_bytes ||
      file.size_bytes > memory_bytes - begin) {
    return absl::InternalError(absl::StrCat("it is at ", begin, " of ", memory_bytes, " bytes"));
  }
  return MapFileRange(file, memory.data() + begin);
}

ShmHandoverOptions NodeFiles::NextHandover() {
  key_prefix_ = absl::StrCat("memfd/", ++calls_);
  ShmHandoverOptions options;
  options.self = self_;
  for (size_t i = 0; i < arena_.memories().size(); ++i) {
    const Rank rank{ToInt(first_) + static_cast<int32_t>(i)};
    if (rank != self_) options.others.push_back(rank);
  }
  options.aborted = &aborted_;
  options.key_prefix = key_prefix_;
  return options;
}

absl::StatusOr<absl::Span<std::byte>> NodeFiles::Map(const FileRange& file, Store& store,
                                                     absl::Time deadline) {
  MutexLock lock(&mu_);
  COORDD_RETURN_IF_ERROR(out_of_step_);
  // Who has nothing to show takes part, so that the others hear of it.
  const absl::StatusOr<absl::Span<std::byte>> own = MapOwn(file);
  COORDD_ASSIGN_OR_RETURN(const OwnedFd none, ShmSegment::CreateNone());
  ShmHandoverOptions handover = NextHandover();
  handover.segment_fd = own.ok() ? file.fd : none.get();
  handover.note = "none";
  if (own.ok()) {
    handover.note = Encode({own->data() - arena_.memories()[IndexOf(self_)].data(),
                            file.offset_bytes, file.size_bytes});
  }
  Mapped all{calls_, std::vector<absl::Span<std::byte>>(arena_.memories().size())};
  std::string objection(own.status().message());
  absl::StatusOr<std::vector<ShmPeer>> peers = HandOverSegments(handover, store, clock_, deadline);
  // As long as this rank has not said that it has everything, nobody uses it.
  const auto withdraw = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const absl::Span<std::byte> mapped : all.files) MapNothing(mapped);
    if (!own.ok()) return;
    MapNothing(*own);
    GiveBackRange(own->data());
  };
  if (!peers.ok()) {
    withdraw();
    out_of_step_ = NotByAll("registered", peers.status());
    return Gone(peers.status());
  }
  for (const ShmPeer& peer : *peers) {
    const absl::StatusOr<absl::Span<std::byte>> mapped = MapOf(peer);
    if (mapped.ok()) {
      all.files[IndexOf(peer.rank)] = *mapped;
    } else if (objection.empty()) {
      objection = absl::StrCat("the memfd of rank ", ToInt(peer.rank),
                               " cannot be mapped: ", mapped.status().message());
    }
  }
  const absl::StatusOr<std::optional<ShmObjection>> met =
      ObjectionOfAny(handover, *peers, objection, clock_, deadline);
  if (!met.ok()) {
    // Others may have heard from everybody, and use it.
    out_of_step_ = NotByAll("registered", met.status());
    return met.status();
  }
  if (met->has_value()) {
    withdraw();
    COORDD_RETURN_IF_ERROR(own.status());
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", ToInt((*met)->rank), ": ", (*met)->why));
  }
  mapped_.emplace(own->data(), std::move(all));
  return own;
}

absl::Status NodeFiles::Unmap(absl::Span<std::byte> bytes, Store& store, absl::Time deadline) {
  MutexLock lock(&mu_);
  const auto found = mapped_.find(bytes.data());
  if (found == mapped_.end()) return absl::InvalidArgumentError("no memfd is mapped there");
  const Mapped all = std::move(found->second);
  mapped_.erase(found);
  const auto leave = [&](const absl::Status& why) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    MapNothing(bytes);
    out_of_step_ = NotByAll("unregistered", why);
    return Gone(why);
  };
  if (!out_of_step_.ok()) {
    MapNothing(bytes);
    return out_of_step_;
  }
  absl::StatusOr<OwnedFd> none = ShmSegment::CreateNone();
  if (!none.ok()) return leave(none.status());
  ShmHandoverOptions handover = NextHandover();
  handover.segment_fd = none->get();
  handover.note = absl::StrCat(all.number);
  const absl::StatusOr<std::vector<ShmPeer>> peers =
      HandOverSegments(handover, store, clock_, deadline);
  if (!peers.ok()) return leave(peers.status());
  for (const ShmPeer& peer : *peers) {
    if (peer.note == handover.note) continue;
    MapNothing(bytes);
    const absl::Status other = absl::FailedPreconditionError(
        absl::StrCat("rank ", ToInt(peer.rank), " did not unregister, in its call ", calls_,
                     ", the memfd that this rank registered in call ", all.number));
    out_of_step_ = NotByAll("unregistered", other);
    return other;
  }
  // All are here, so that no collective runs on it.
  for (const absl::Span<std::byte> mapped : all.files) MapNothing(mapped);
  MapNothing(bytes);
  GiveBackRange(bytes.data());
  return absl::OkStatus();
}

void NodeFiles::Forget(absl::Span<std::byte> bytes) {
  MapNothing(bytes);
  MutexLock lock(&mu_);
  mapped_.erase(bytes.data());
}

}  // namespace coordd

#include "worker/node/node_board.h"

#include <algorithm>

namespace coordd {

int64_t NodeBoard::SizeBytes() {
  return static_cast<int64_t>(sizeof(Directory) + kEntries * sizeof(BoardEntry));
}

// Zeros are a valid state of everything that lies there.
NodeBoard::NodeBoard(std::byte* memory)
    : directory_(reinterpret_cast<Directory*>(memory)),
      entries_(reinterpret_cast<BoardEntry*>(memory + sizeof(Directory))) {}

BoardEntry* NodeBoard::Claim(LaneId lane) {
  // The lowest one, so that readers have few to look at.
  for (int32_t i = 0; i < kEntries; ++i) {
    if (directory_->lanes[i].load(std::memory_order_relaxed) != 0) continue;
    BoardEntry& entry = entries_[i];
    entry.finished.store(0, std::memory_order_relaxed);
    entry.ending.store(0, std::memory_order_relaxed);
    for (BoardPost& post : entry.posts) post.step.store(0, std::memory_order_relaxed);
    directory_->lanes[i].store(ToInt(lane) + 1, std::memory_order_release);
    const int32_t used = directory_->used.load(std::memory_order_relaxed);
    directory_->used.store(std::max(used, i + 1), std::memory_order_release);
    return &entry;
  }
  return nullptr;
}

void NodeBoard::Free(LaneId lane) {
  BoardEntry* const entry = Find(lane);
  if (entry != nullptr) directory_->lanes[entry - entries_].store(0, std::memory_order_release);
}

void NodeBoard::RingAll() const {
  bell().Ring();
  const int32_t used = std::min(directory_->used.load(std::memory_order_acquire), kEntries);
  for (int32_t i = 0; i < used; ++i) entries_[i].bell.Ring();
}

BoardEntry* NodeBoard::Find(LaneId lane) const {
  const int32_t used = std::min(directory_->used.load(std::memory_order_acquire), kEntries);
  for (int32_t i = 0; i < used; ++i) {
    if (directory_->lanes[i].load(std::memory_order_acquire) == ToInt(lane) + 1)
      return &entries_[i];
  }
  return nullptr;
}

}  // namespace coordd

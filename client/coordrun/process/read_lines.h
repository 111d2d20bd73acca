// Lines out of a non-blocking descriptor. (io)
#pragma once

#include "client/coordrun/process/line_splitter.h"
#include "client/coordrun/process/stream_splitter.h"
#include "common/base/owned_fd.h"

namespace coordd {

// Reads what is there into `lines`; finishes them and closes `fd` at the end of the stream.
void ReadLines(OwnedFd& fd, LineSplitter& lines, const LineSplitter::Emit& emit);

// Reads pieces, which come at `now`.
void ReadPieces(OwnedFd& fd, StreamSplitter& pieces, absl::Time now,
                const StreamSplitter::Emit& emit);

}  // namespace coordd

// Lines out of a non-blocking descriptor. (io)
#pragma once

#include "client/coordrun/line_splitter.h"
#include "client/coordrun/unique_fd.h"

namespace coordd {

// Reads what is there into `lines`; finishes them and closes `fd` at the end of the stream.
void ReadLines(UniqueFd& fd, LineSplitter& lines, const LineSplitter::Emit& emit);

}  // namespace coordd

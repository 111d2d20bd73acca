// Graphs of the fake driver. Only what coordd's tests, as programs, do: one stream is captured,
// with those that wait for it, into one order.
#pragma once

#include <memory>

#include "tests/support/gpu/fake_cuda.h"
#include "tests/support/gpu/fake_stream.h"

namespace coordd {

FakeStream& StreamOf(CudaStream stream);
// Captures that have begun and not ended, in this process.
int FakeCaptures();
// The streams that are captured into `from` are captured into `to` (nullptr: run) from now on.
void CaptureStreams(const std::shared_ptr<FakeGraphBody>& from,
                    const std::shared_ptr<FakeGraphBody>& to);

}  // namespace coordd

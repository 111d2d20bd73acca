// What others have written, made fit for a terminal. PURE
#pragma once

#include "google/protobuf/message.h"

namespace coordd {

// Replaces every string field of `message`, at any depth, by its PrintableText: names of jobs,
// hosts and tensors are whatever a job's program says. Fields called "stack" keep their line ends.
// Bytes stay as they are.
void MakePrintable(google::protobuf::Message* message);

}  // namespace coordd

// A program in two processes that look after each other, so that nothing it has started outlives
// it, however it ends. (io)
#pragma once

#include <functional>
#include <string>

namespace coordd {

// Forks. `body` runs in the child, and its value is returned by the parent, which passes on the
// signals that it gets (but those that were ignored from the start, which stay so in both) and,
// when the child has ended in any way, kills all processes that the child has left behind and
// removes `directory`. When the parent dies first, the child does both. Both
// are subreapers: a descendant that leaves its session, its group or its parent stays theirs.
//
// What is guaranteed: when one of the two is killed with SIGKILL, every process below them gets
// SIGKILL within milliseconds and is collected, unless it runs as another user. When both are
// killed in the same moment, the direct children of the child still die (ChildProcess asks the
// kernel for it); what those have started does not.
//
// The parent calls itself "coordd-guard", so that killall coordrun hits one of them only.
// `reads_terminal`: stdin is a terminal that what `body` starts is to read. The child and all below
// it are in the background, where a terminal stops who reads; so a third process in the parent's
// group reads it, and the child's stdin is a pipe from there.
//
// REQUIRES: the process has one thread; called once.
int RunSupervised(const std::string& directory, const std::function<int()>& body,
                  bool reads_terminal = false);

}  // namespace coordd

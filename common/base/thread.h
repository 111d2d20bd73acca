// A named thread that is joined by its owner.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace coordd {

// `name`: at most 15 characters, as the kernel shows it in top -H and gdb;
// docs/architecture/threads.md lists all of them. REQUIRES: the owner joins it. Signals that main
// handles are blocked in it.
std::thread StartThread(const std::string& name, std::function<void()> body);

}  // namespace coordd

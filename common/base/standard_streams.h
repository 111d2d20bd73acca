// stdin, stdout and stderr of a program that may have been started without them. (io)
#pragma once

namespace coordd {

// What was closed at the start (`program <&-`) is /dev/null from now on: otherwise the next file
// or socket gets its number, and what is printed ends up there. The first call in main.
//
// By then it may be too late: constructors of shared libraries run before main, and gRPC's keep a
// descriptor. Such a one is closed by exec, as nothing that was inherited is. Then the program
// begins anew with all three open, in the same process.
void OpenStandardStreams(char** argv);

}  // namespace coordd

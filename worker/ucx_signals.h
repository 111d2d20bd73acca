// UCX's handlers of fatal signals, which belong to the program and not to a library. (io)
#pragma once

namespace coordd {

// When UCX's library is loaded it takes SIGSEGV, SIGBUS, SIGFPE and SIGILL, to print a trace of its
// own, and SIGHUP, which then no longer ends a program whose terminal has gone. This gives each
// back to whoever had it, unless the user wants it so: UCX_HANDLE_ERRORS and UCX_DEBUG_SIGNO.
// Handlers that others have set since stay. Setting those variables before the library is loaded
// would do the same, but the program's children would inherit them. Called once, when this code is
// loaded.
void GiveBackSignals();

}  // namespace coordd

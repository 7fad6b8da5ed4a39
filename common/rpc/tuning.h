// Process-wide settings of malloc and gRPC.
#pragma once

namespace lodestone {

// Call first in main(), before other threads run.
//
// Makes malloc keep what is freed instead of giving it back to the kernel between messages: message buffers of a
// megabyte come and go thousands of times a second, and fresh pages would cost as much as what is received into them.
// Memory that was used once for messages stays with the process, usually some tens of megabytes.
//
// A program with this in it runs gRPC's callbacks on CallbackThreads: one for two cores, and a spare one, in place of
// two at least. That many wait for the same sockets, and each message of a stream would wake another one of them.
//
// Turns off the search for lock cycles that Debian's build of Abseil makes at every lock of gRPC's.
void TuneLibraries();

// Whether all threads that run gRPC's callbacks run one at the moment, so that nobody waits for messages. Thread-safe.
bool CallbackThreadsAreBusy();

}  // namespace lodestone

// What fake_nccl.so has besides NCCL's own functions, found with dlsym. It moves real data between
// ranks (threads, or processes with one FAKE_NCCL_DIR), on streams of fake_cuda.so; keeps NCCL's
// rules and says which one was broken; and hangs when a rank is missing, as NCCL does. Its abort
// returns when everything that was launched has ended, and its abort and its destroy free pinned
// memory, for which they wait until the device is idle (NCCL's commFree).
// fake_nccl_old.so is the same as 2.18.5, without what came later; fake_nccl_ancient.so is 2.17.1.
#pragma once

extern "C" {

// Before the first call the variable FAKE_NCCL is read, "init_polls=3,async_error=6".
//   init_polls      (1)  how often init is asked for before it is over
//   call_polls      (1)  the same for every operation: from 2.23.4 on none of a non-blocking
//                        communicator is on its stream when the call returns
//   config_min_ctas (0)  what configurations have to say; 0: nothing. The same with max_ctas,
//                        cga_cluster_size, traffic_class, and net_name (1: any)
//   blocking        (0)  1: a communicator may be blocking, which none of coordd's is
//   init_never      (0)  1: init never ends
//   init_error      (0)  what ncclCommInitRankConfig returns
//   id_error        (0)  what ncclGetUniqueId returns
//   id_repeats      (0)  how often it then gives the id that it has given last
//   register_error  (0)  what ncclCommRegister returns
//   no_windows      (0)  1: ncclCommWindowRegister finds no symmetric memory
//   memory_error    (0)  what ncclMemAlloc returns
//   shrink_error    (0)  what ncclCommShrink returns
//   shrink_polls    (1)  how often the parent is asked for before it is over
//   shrink_never    (0)  1: it never ends
//   shrink_fails    (0)  what it ends with, later
//   split_error     (0)  what ncclCommSplit returns
//   split_fails     (0)  what it ends with, later
//   async_error     (0)  what the next operation ends with, asynchronously, and never on its stream
//   abort_hangs     (0)  1: ncclCommAbort and ncclCommRevoke return when it is 0 again
//   within          (0)  what ranks of a host are connected by, which is said with NCCL_DEBUG=INFO
//                        and changes nothing: 0: NVLink, 1: PCIe, 2: shared memory
//   between         (0)  the same of hosts: 0: sockets, 1: InfiniBand, 2: the same to and from
//   GPUs'
//                        memory, 3: the same where a card is too far from a GPU, 4: a plugin
//   shared_device   (0)  1: two ranks may be on one device
void fake_nccl_set(const char* name, long value);

// The first rule that was broken in this process since the last call; "": none.
const char* fake_nccl_broken_rule();
// That of the last configuration; "" before 2.27.
const char* fake_nccl_last_name();
// Communicators that have been made and neither destroyed nor aborted; those that were aborted.
long fake_nccl_live_communicators();
long fake_nccl_calls();  // of collectives, sends and receives
long fake_nccl_aborted_communicators();
long fake_nccl_revoked_communicators();  // whose revocation has come to its end
long fake_nccl_finalized_communicators();
long fake_nccl_shrunk_communicators();  // that came out of ncclCommShrink
long fake_nccl_split_communicators();   // that came out of ncclCommSplit
long fake_nccl_multiplied_calls();      // of sums whose inputs are multiplied first
long fake_nccl_registered_buffers();    // how often one was
long fake_nccl_windows();               // that were made
}

// Which NCCL coordd works with, and what of it came later than that.
#pragma once

namespace coordd {

inline constexpr char kNcclLibrary[] = "libnccl.so.2";
inline constexpr char kNcclVariable[] = "COORDD_NCCL_LIBRARY";

// 2.18.0, the first version with everything that is required.
inline constexpr int kNcclVersionMin = 21800;
// 2.19.3: before, an abort beside a call of another thread is known to hang (NVIDIA/nccl issue
// 992).
inline constexpr int kNcclVersionAborts = 21903;
// 2.24.0, the first version with the types of float8.
inline constexpr int kNcclVersionFloat8 = 22400;

// Functions that are used where a library has them; the table of components names those that it
// lacks.
inline constexpr const char* kNcclLaterFunctions[] = {"ncclCommInitRankScalable",
                                                      "ncclCommRegister",
                                                      "ncclCommDeregister",
                                                      "ncclMemAlloc",
                                                      "ncclMemFree",
                                                      "ncclCommWindowRegister",
                                                      "ncclCommWindowDeregister",
                                                      "ncclCommShrink",
                                                      "ncclCommRevoke"};

}  // namespace coordd

// A grouped allreduce as a custom call of XLA, for tf.function(jit_compile=True), where ops such as
// ours cannot be. TensorFlow's own op XlaCustomCallV2 reaches it by its name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace coordd::tensorflow {

// What the Python side has written for one call.
struct XlaCall {
  int32_t reduce_op = 0;
  int32_t process_set = 0;
  double prescale_factor = 1;
  double postscale_factor = 1;
  struct Member {
    int32_t dtype = 0;
    int64_t elements = 0;
  };
  std::vector<Member> members;
  std::string name;
};

// Of "OP PRESCALE POSTSCALE SET COUNT DTYPE ELEMENTS [DTYPE ELEMENTS ...] NAME". Nothing: it is not
// that. PURE.
std::optional<XlaCall> ParseXlaCall(const std::string& text);

// Offers it to XLA's programs on the host as "coordd_allreduce". False: this TensorFlow does not
// export the registry of such calls.
bool RegisterXlaCall();

}  // namespace coordd::tensorflow

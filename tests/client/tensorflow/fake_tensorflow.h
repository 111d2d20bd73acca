// A stand-in of TensorFlow's C interface that checks every call, for tests of
// libcoordd_tensorflow.so where there is no TensorFlow. It runs one node at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace fake_tensorflow {

#define FAKE_TENSORFLOW_EXPORT __attribute__((visibility("default")))

// TF_DataType.
inline constexpr int kFloat = 1;
inline constexpr int kInt32 = 3;
inline constexpr int kString = 7;
inline constexpr int kComplex64 = 8;
inline constexpr int kInt64 = 9;

// Memory, of the stand-in's own or somebody else's, which is given back at its end.
class Buffer;

struct Tensor {
  int dtype = kFloat;
  std::vector<int64_t> shape;
  std::shared_ptr<Buffer> buffer;
};

using Attributes = std::map<std::string, std::variant<std::string, int32_t, float>>;

struct Outcome {
  int code = 0;  // TF_Code
  std::string message;
  std::vector<Tensor> outputs;
};

// Shapes of the outputs; -1: an unknown dimension. Ends the program where the function breaks a
// rule.
struct Shapes {
  int code = 0;
  std::vector<std::vector<int64_t>> outputs;
};

FAKE_TENSORFLOW_EXPORT Tensor NewTensor(int dtype, std::vector<int64_t> shape, const void* data);
FAKE_TENSORFLOW_EXPORT const void* DataOf(const Tensor& tensor);

// What is registered: "name(inputs) -> outputs" of each op, in order.
FAKE_TENSORFLOW_EXPORT std::vector<std::string> RegisteredOps();
FAKE_TENSORFLOW_EXPORT std::vector<std::string> RegisteredKernels();  // "name on CPU"

// Runs the op's kernel, whose callback is destroyed and overwritten as soon as the kernel returns,
// and waits for it. `inputs` are given away: a buffer that the caller keeps is not to be
// overwritten.
FAKE_TENSORFLOW_EXPORT Outcome RunNode(const std::string& op, const Attributes& attributes,
                                       std::vector<Tensor> inputs);
FAKE_TENSORFLOW_EXPORT Shapes InferShapes(const std::string& op,
                                          const std::vector<std::vector<int64_t>>& inputs);

// Objects of the C interface that have been made and not deleted: none between two runs.
FAKE_TENSORFLOW_EXPORT int LiveObjects();

}  // namespace fake_tensorflow

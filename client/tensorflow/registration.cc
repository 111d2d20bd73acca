#include "client/tensorflow/registration.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/tensorflow/execution.h"
#include "client/tensorflow/kernel.h"
#include "client/tensorflow/queries.h"
#include "client/tensorflow/self_check.h"
#include "client/tensorflow/shapes.h"
#include "client/tensorflow/tf_api.h"

namespace coordd::tensorflow {
namespace {

// --- kernels
// ---------------------------------------------------------------------------------------

// Reads the attributes of a node; the first failure counts.
class Attributes {
 public:
  explicit Attributes(TfConstruction* construction) : construction_(construction) {}

  std::string Text(const char* name) {
    int32_t list = 0;
    int32_t size = 0;
    if (status_.ok()) {
      Tf().OpKernelConstruction_GetAttrSize(construction_, name, &list, &size, status_.get());
    }
    std::string text(status_.ok() ? static_cast<size_t>(size) : 0, '\0');
    if (status_.ok() && size > 0) {
      Tf().OpKernelConstruction_GetAttrString(construction_, name, text.data(), text.size(),
                                              status_.get());
    }
    return text;
  }
  int32_t Number(const char* name) {
    int32_t value = 0;
    if (status_.ok()) {
      Tf().OpKernelConstruction_GetAttrInt32(construction_, name, &value, status_.get());
    }
    return value;
  }
  float Factor(const char* name) {
    float value = 1;
    if (status_.ok()) {
      Tf().OpKernelConstruction_GetAttrFloat(construction_, name, &value, status_.get());
    }
    return value;
  }
  void TellFailure() {
    if (!status_.ok()) Tf().OpKernelConstruction_Failure(construction_, status_.get());
  }

 private:
  TfConstruction* const construction_;
  const OwnedStatus status_;
};

template <Kind kind, bool grouped>
void* CreateCollective(TfConstruction* construction) {
  Attributes attributes(construction);
  auto kernel = std::make_unique<Kernel>();
  kernel->kind = kind;
  kernel->grouped = grouped;
  if (kind != Kind::kJoin) {
    kernel->name = attributes.Text("tensor_name");
    kernel->process_set = attributes.Number("process_set");
  }
  if (kind == Kind::kAllreduce || kind == Kind::kReducescatter) {
    kernel->reduce_op = attributes.Number("reduce_op");
    kernel->prescale_factor = attributes.Factor("prescale_factor");
    kernel->postscale_factor = attributes.Factor("postscale_factor");
  }
  if (kind == Kind::kBroadcast) kernel->root_rank = attributes.Number("root_rank");
  attributes.TellFailure();
  return kernel.release();
}

void ComputeCollective(void* kernel, TfContext* context, TfDone* done) {
  StartCollective(*static_cast<const Kernel*>(kernel), context, done);
}

void DeleteCollective(void* kernel) { delete static_cast<Kernel*>(kernel); }

void* CreateQuery(TfConstruction* construction) {
  Attributes attributes(construction);
  auto process_set = std::make_unique<int32_t>(attributes.Number("process_set"));
  attributes.TellFailure();
  return process_set.release();
}

template <Query query>
void ComputeQuery(void* process_set, TfContext* context) {
  AnswerQuery(query, *static_cast<const int32_t*>(process_set), context);
}

void DeleteQuery(void* process_set) { delete static_cast<int32_t*>(process_set); }

void* CreateNothing(TfConstruction*) { return nullptr; }
void ComputeSelfCheck(void*, TfContext* context, TfDone* done) { StartSelfCheck(context, done); }
void DeleteNothing(void*) {}

// --- ops
// -------------------------------------------------------------------------------------------

struct Op {
  const char* name;
  std::vector<const char*> attributes;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  TfShapeFunction shapes;
  TfCreate create;
  TfComputeAsync compute_async;  // or
  TfCompute compute;
  TfDelete destroy;
};

constexpr char kName[] = "tensor_name: string";
constexpr char kSet[] = "process_set: int = 0";
constexpr char kReduce[] = "reduce_op: int";
constexpr char kPrescale[] = "prescale_factor: float = 1.0";
constexpr char kPostscale[] = "postscale_factor: float = 1.0";
constexpr char kType[] = "T: type";
constexpr char kTypes[] = "T: list(type) >= 1";

template <Kind kind, bool grouped>
Op Collective(const char* name, std::vector<const char*> attributes, TfShapeFunction shapes) {
  attributes.insert(attributes.end(), {grouped ? kTypes : kType, kName, kSet});
  return {name,
          std::move(attributes),
          {grouped ? "tensors: T" : "tensor: T"},
          {grouped ? "results: T" : "result: T"},
          shapes,
          &CreateCollective<kind, grouped>,
          &ComputeCollective,
          nullptr,
          &DeleteCollective};
}

template <Query query>
Op Question(const char* name) {
  return {name,        {kSet},       {},      {"answer: int32"},
          &OneNumber,  &CreateQuery, nullptr, &ComputeQuery<query>,
          &DeleteQuery};
}

std::vector<Op> AllOps() {
  Op alltoall = Collective<Kind::kAlltoall, false>("CoorddAlltoall", {}, &OtherRowsAndSplits);
  alltoall.inputs.push_back("splits: int64");
  alltoall.outputs.push_back("received_splits: int32");
  const std::vector<const char*> reduction = {kReduce, kPrescale, kPostscale};
  return {
      Collective<Kind::kAllreduce, false>("CoorddAllreduce", reduction, &SameShapes),
      Collective<Kind::kAllreduce, true>("CoorddGroupedAllreduce", reduction, &SameShapes),
      Collective<Kind::kAllgather, false>("CoorddAllgather", {}, &OtherRows),
      Collective<Kind::kAllgather, true>("CoorddGroupedAllgather", {}, &OtherRows),
      Collective<Kind::kBroadcast, false>("CoorddBroadcast", {"root_rank: int"}, &SameShapes),
      Collective<Kind::kReducescatter, false>("CoorddReducescatter", reduction, &OtherRows),
      Collective<Kind::kReducescatter, true>("CoorddGroupedReducescatter", reduction, &OtherRows),
      std::move(alltoall),
      {"CoorddJoin",
       {},
       {},
       {"last_rank: int32"},
       &OneNumber,
       &CreateCollective<Kind::kJoin, false>,
       &ComputeCollective,
       nullptr,
       &DeleteCollective},
      {"CoorddBarrier",
       {kName, kSet},
       {},
       {},
       &NoOutput,
       &CreateCollective<Kind::kBarrier, false>,
       &ComputeCollective,
       nullptr,
       &DeleteCollective},
      Question<Query::kRank>("CoorddRank"),
      Question<Query::kSize>("CoorddSize"),
      Question<Query::kLocalRank>("CoorddLocalRank"),
      Question<Query::kLocalSize>("CoorddLocalSize"),
      Question<Query::kIncluded>("CoorddProcessSetIncluded"),
      {"CoorddSelfCheck",
       {},
       {},
       {"answer: int32"},
       &OneNumber,
       &CreateNothing,
       &ComputeSelfCheck,
       nullptr,
       &DeleteNothing},
  };
}

void DefineOp(const Op& op, TfStatus* status) {
  TfOpBuilder* builder = Tf().NewOpDefinitionBuilder(op.name);
  for (const char* one : op.attributes) Tf().OpDefinitionBuilderAddAttr(builder, one);
  for (const char* one : op.inputs) Tf().OpDefinitionBuilderAddInput(builder, one);
  for (const char* one : op.outputs) Tf().OpDefinitionBuilderAddOutput(builder, one);
  // Without a declared effect a node could be folded to a constant, or pruned on one rank only.
  Tf().OpDefinitionBuilderSetIsStateful(builder, true);
  Tf().OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shapes);
  Tf().RegisterOpDefinition(builder, status);
}

// On a GPU by way of the host: TF_GetStream has no stream for TensorFlow's own GPUs.
void AddKernel(const Op& op, const char* device, TfStatus* status) {
  TfKernelBuilder* builder =
      op.compute != nullptr
          ? Tf().NewKernelBuilder(op.name, device, op.create, op.compute, op.destroy)
          : Tf().NewAsyncKernelBuilder(op.name, device, op.create, op.compute_async, op.destroy);
  if (std::strcmp(device, "GPU") == 0) {
    for (const auto& arguments : {op.inputs, op.outputs}) {
      for (const char* argument : arguments) {
        const std::string name(argument, std::strchr(argument, ':'));
        Tf().KernelBuilder_HostMemory(builder, name.c_str());
      }
    }
  }
  Tf().RegisterKernelBuilder(op.name, builder, status);
}

}  // namespace

std::string RegisterOps() {
  const OwnedStatus status;
  for (const Op& op : AllOps()) {
    DefineOp(op, status.get());
    for (const char* device : {"CPU", "GPU"}) {
      if (status.ok()) AddKernel(op, device, status.get());
    }
    if (!status.ok()) return std::string(op.name) + ": " + status.message();
  }
  return "";
}

}  // namespace coordd::tensorflow

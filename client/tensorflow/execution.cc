#include "client/tensorflow/execution.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/tensorflow/done_callback.h"
#include "client/tensorflow/elements.h"
#include "client/tensorflow/loaded_coordd.h"
#include "client/tensorflow/short_wait.h"

namespace coordd::tensorflow {
namespace {

int CodeOfSubmission(coordd_status_t status) {
  return status == COORDD_GENERATION_CHANGED ? kTfAborted : status;
}

// A rank's own mistakes are found at the submission: afterwards an invalid argument means that
// the ranks' arguments disagree, which Horovod's programs know as FailedPreconditionError.
int CodeOfResult(coordd_status_t status) {
  return status == COORDD_INVALID_ARGUMENT ? kTfFailedPrecondition : CodeOfSubmission(status);
}

void ReleaseWork(void*, size_t, void* work) {
  Coordd().coordd_work_release(static_cast<coordd_work_t*>(work));
}

// Deletes itself when the last of its tensors is complete.
class Execution {
 public:
  Execution(const Kernel& kernel, TfContext* context, TfDone* done)
      : kernel_(kernel), context_(context), done_(done) {}
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  void Start();

 private:
  struct Member {
    std::vector<int64_t> shape;       // TensorFlow's
    std::vector<int64_t> wire_shape;  // the library's
    std::string name;
    int dtype = 0;
    TfTensor* input = nullptr;   // kept while the library reads it
    TfTensor* output = nullptr;  // where the library writes; null: it allocates
    coordd_work_t* work = nullptr;
  };

  bool DescribeInputs();
  bool Describe(int index, Member* member, coordd_tensor_t* tensor);
  bool GiveOutput(int index, const Member& described, TfTensor** output, bool* forwarded);
  bool TakeSplits();
  coordd_status_t Submit(std::vector<coordd_work_t*>* works);
  coordd_status_t SubmitOne(const coordd_call_options_t& options, coordd_work_t** work);
  void TakeResult(int index);
  void TakeReceivedSplits(const coordd_result_t& result);
  bool SetOutput(int index, TfTensor* tensor);
  bool Check(const OwnedStatus& status);
  bool Fail(int code, const std::string& message);
  void Finish();
  static void OnComplete(void* user, coordd_status_t status, const char* message);

  // Constant after construction.
  const Kernel& kernel_;
  TfContext* const context_;
  const UnderWay under_way_;
  // Touched by the thread that starts it until all is submitted, then by the last OnComplete().
  DoneCallback done_;
  std::vector<Member> members_;
  std::vector<coordd_tensor_t> tensors_;
  std::vector<int64_t> splits_;
  // Touched by each OnComplete().
  std::atomic<size_t> pending_{0};
  std::atomic<bool> failed_{false};
};

Execution::~Execution() {
  for (const Member& member : members_) {
    if (member.input != nullptr) Tf().DeleteTensor(member.input);
    if (member.output != nullptr) Tf().DeleteTensor(member.output);
    Coordd().coordd_work_release(member.work);
  }
}

void Execution::Start() {
  if (CurrentWorker() == nullptr) {
    Fail(kTfFailedPrecondition, kNotInitialised);
    return Finish();
  }
  if (!DescribeInputs() || !TakeSplits()) return Finish();
  std::vector<coordd_work_t*> works(members_.size());
  const coordd_status_t status = Submit(&works);
  if (status != COORDD_OK) {
    Fail(CodeOfSubmission(status), Coordd().coordd_last_error());
    return Finish();
  }
  if (members_.size() == 1 && works[0] == nullptr) return Finish();  // it is complete
  for (size_t i = 0; i < works.size(); ++i) members_[i].work = works[i];
  pending_ = works.size();
  // The last callback deletes this object, perhaps within this loop.
  for (coordd_work_t* work : works) Coordd().coordd_work_on_complete(work, &OnComplete, this);
}

bool Execution::DescribeInputs() {
  // An alltoall has its splits as a second input; a join and a barrier have none.
  const bool without_tensors = kernel_.kind == Kind::kJoin || kernel_.kind == Kind::kBarrier;
  const size_t count = without_tensors ? 1
                       : kernel_.kind == Kind::kAlltoall
                           ? 1
                           : static_cast<size_t>(Tf().NumInputs(context_));
  members_.resize(count);
  if (without_tensors) return true;
  tensors_.assign(count, coordd_tensor_t COORDD_TENSOR_INIT);
  for (size_t i = 0; i < count; ++i) {
    if (!Describe(static_cast<int>(i), &members_[i], &tensors_[i])) return false;
  }
  return true;
}

bool Execution::Describe(int index, Member* member, coordd_tensor_t* tensor) {
  const OwnedStatus status;
  Tf().GetInput(context_, index, &member->input, status.get());
  if (!Check(status)) return false;
  member->dtype = Tf().TensorType(member->input);
  for (int d = 0; d < Tf().NumDims(member->input); ++d) {
    member->shape.push_back(Tf().Dim(member->input, d));
  }
  const auto elements = ElementsOf(member->dtype);
  member->name = MemberName(kernel_.name, static_cast<size_t>(index), members_.size());
  if (!elements) {
    return Fail(kTfInvalidArgument, member->name + ": " + CannotTravel(member->dtype));
  }
  if (elements->is_complex && kernel_.reduce_op > COORDD_AVERAGE) {
    return Fail(kTfInvalidArgument,
                member->name + ": Min, Max or Product of complex numbers, expected Sum or Average");
  }
  member->wire_shape = WireShape(member->shape, *elements);
  tensor->name = member->name.c_str();
  tensor->input = Tf().TensorData(member->input);
  tensor->shape = member->wire_shape.data();
  tensor->ndim = static_cast<int32_t>(member->wire_shape.size());
  tensor->dtype = elements->dtype;
  if (HasOwnResult(kernel_.kind)) return true;
  // The input's own buffer where nobody else needs it, as a rule of a gradient, else a new one. Our
  // reference goes first: a buffer is given away only while its reference count is one. The context
  // keeps the input otherwise.
  Tf().DeleteTensor(member->input);
  member->input = nullptr;
  bool forwarded = false;
  if (!GiveOutput(index, *member, &member->output, &forwarded)) return false;
  tensor->output = Tf().TensorData(member->output);
  if (forwarded) return true;
  Tf().GetInput(context_, index, &member->input, status.get());
  return Check(status);
}

bool Execution::GiveOutput(int index, const Member& described, TfTensor** output, bool* forwarded) {
  const OwnedStatus status;
  int from = -1;
  *output = Tf().ForwardInputOrAllocateOutput(context_, &index, 1, index, described.shape.data(),
                                              static_cast<int>(described.shape.size()), &from,
                                              status.get());
  *forwarded = from >= 0;
  return Check(status);
}

bool Execution::TakeSplits() {
  if (kernel_.kind != Kind::kAlltoall) return true;
  const OwnedStatus status;
  TfTensor* splits = nullptr;
  Tf().GetInput(context_, 1, &splits, status.get());
  if (!Check(status)) return false;
  const int64_t count = Tf().NumDims(splits) == 1 ? Tf().Dim(splits, 0) : -1;
  if (count > 0) {
    const auto* values = static_cast<const int64_t*>(Tf().TensorData(splits));
    splits_.assign(values, values + count);
  }
  Tf().DeleteTensor(splits);
  return count >= 0 ||
         Fail(kTfInvalidArgument,
              kernel_.name + ": splits have another number of dimensions, expected 1");
}

coordd_status_t Execution::Submit(std::vector<coordd_work_t*>* works) {
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  options.prescale_factor = static_cast<double>(kernel_.prescale_factor);
  options.postscale_factor = static_cast<double>(kernel_.postscale_factor);
  options.process_set = kernel_.process_set;
  if (!kernel_.grouped) return SubmitOne(options, works->data());
  const char* name = kernel_.name.c_str();
  coordd_worker_t* worker = CurrentWorker();
  switch (kernel_.kind) {
    case Kind::kAllreduce:
      return Coordd().coordd_grouped_allreduce_async(worker, name, tensors_.data(), tensors_.size(),
                                                     kernel_.reduce_op, &options, works->data());
    case Kind::kReducescatter:
      return Coordd().coordd_grouped_reducescatter_async(worker, name, tensors_.data(),
                                                         tensors_.size(), kernel_.reduce_op,
                                                         &options, works->data());
    default:
      return Coordd().coordd_grouped_allgather_async(worker, name, tensors_.data(), tensors_.size(),
                                                     &options, works->data());
  }
}

coordd_status_t Execution::SubmitOne(const coordd_call_options_t& options, coordd_work_t** work) {
  coordd_worker_t* worker = CurrentWorker();
  const coordd_tensor_t* tensor = tensors_.data();
  switch (kernel_.kind) {
    case Kind::kAllreduce:
      return SubmitAllreduce(under_way_, *tensor, kernel_.reduce_op, options, work);
    case Kind::kAllgather:
      return Coordd().coordd_allgather_async(worker, tensor, &options, work);
    case Kind::kBroadcast:
      return Coordd().coordd_broadcast_async(worker, tensor, kernel_.root_rank, &options, work);
    case Kind::kAlltoall:
      return Coordd().coordd_alltoall_async(worker, tensor,
                                            splits_.empty() ? nullptr : splits_.data(),
                                            splits_.size(), &options, work);
    case Kind::kReducescatter:
      return Coordd().coordd_reducescatter_async(worker, tensor, kernel_.reduce_op, &options, work);
    case Kind::kJoin:
      return Coordd().coordd_join_async(worker, nullptr, work);
    case Kind::kBarrier:
      break;
  }
  const char* name = kernel_.name.empty() ? nullptr : kernel_.name.c_str();
  return Coordd().coordd_barrier_async(worker, name, &options, work);
}

void Execution::OnComplete(void* user, coordd_status_t status, const char* message) {
  auto* execution = static_cast<Execution*>(user);
  if (status != COORDD_OK) execution->Fail(CodeOfResult(status), message);
  if (execution->pending_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (HasOwnResult(execution->kernel_.kind)) {
    for (size_t i = 0; i < execution->members_.size() && !execution->failed_; ++i) {
      execution->TakeResult(static_cast<int>(i));
    }
  }
  execution->Finish();
}

// A tensor over the library's result, without a copy: it is aligned as TensorFlow wants it, and the
// work lives as long as the tensor does.
void Execution::TakeResult(int index) {
  Member& member = members_[static_cast<size_t>(index)];
  coordd_result_t result = COORDD_RESULT_INIT;
  if (Coordd().coordd_work_result(member.work, &result) != COORDD_OK) {
    Fail(kTfInternal, Coordd().coordd_last_error());
    return;
  }
  const bool is_join = kernel_.kind == Kind::kJoin;
  const std::vector<int64_t> shape =
      is_join ? std::vector<int64_t>{} : ResultShape(member.shape, result.shape[0]);
  const int dtype = is_join ? kTfInt32 : member.dtype;
  const int rank = static_cast<int>(shape.size());
  if (result.output_bytes == 0) {
    const OwnedStatus status;
    member.output =
        Tf().AllocateOutput(context_, index, dtype, shape.data(), rank, 0, status.get());
    if (!Check(status)) return;
  } else {
    TfTensor* tensor =
        Tf().NewTensor(dtype, shape.data(), rank, const_cast<void*>(result.output),
                       static_cast<size_t>(result.output_bytes), &ReleaseWork, member.work);
    if (tensor == nullptr) {
      Fail(kTfInternal, "TF_NewTensor has made no tensor");
      return;
    }
    member.work = nullptr;  // the tensor's
    member.output = tensor;
    if (!SetOutput(index, tensor)) return;
  }
  if (kernel_.kind == Kind::kAlltoall) TakeReceivedSplits(result);
}

void Execution::TakeReceivedSplits(const coordd_result_t& result) {
  const OwnedStatus status;
  const int64_t count = result.num_received_splits;
  const auto size_bytes = static_cast<size_t>(count) * sizeof(int32_t);
  TfTensor* tensor =
      Tf().AllocateOutput(context_, 1, kTfInt32, &count, 1, size_bytes, status.get());
  if (!Check(status)) return;
  auto* values = static_cast<int32_t*>(Tf().TensorData(tensor));
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(result.received_splits[i]);
  Tf().DeleteTensor(tensor);
}

bool Execution::SetOutput(int index, TfTensor* tensor) {
  const OwnedStatus status;
  Tf().SetOutput(context_, index, tensor, status.get());
  return Check(status);
}

bool Execution::Check(const OwnedStatus& status) {
  return status.ok() || Fail(Tf().GetCode(status.get()), status.message());
}

// Always false. The first failure counts.
bool Execution::Fail(int code, const std::string& message) {
  if (!failed_.exchange(true)) {
    const OwnedStatus status;
    Tf().SetStatus(status.get(), code, message.c_str());
    Tf().OpKernelContext_Failure(context_, status.get());
  }
  return false;
}

void Execution::Finish() {
  DoneCallback last = std::move(done_);
  delete this;
  last.Run();
}

}  // namespace

void StartCollective(const Kernel& kernel, TfContext* context, TfDone* done) {
  (new Execution(kernel, context, done))->Start();
}

}  // namespace coordd::tensorflow

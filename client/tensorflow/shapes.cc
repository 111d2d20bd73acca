#include "client/tensorflow/shapes.h"

#include <cstddef>
#include <cstdint>
#include <limits>

namespace coordd::tensorflow {
namespace {

constexpr size_t kUnknownSize = std::numeric_limits<size_t>::max();  // a dimension of -1
constexpr int64_t kToTheEnd = std::numeric_limits<int64_t>::max();

class OwnedShape {
 public:
  OwnedShape() : shape_(Tf().NewShapeHandle()) {}
  explicit OwnedShape(TfShape* shape) : shape_(shape) {}
  ~OwnedShape() { Tf().DeleteShapeHandle(shape_); }
  OwnedShape(const OwnedShape&) = delete;
  OwnedShape& operator=(const OwnedShape&) = delete;

  TfShape* get() const { return shape_; }

 private:
  TfShape* const shape_;
};

bool IsOk(TfStatus* status) { return Tf().GetCode(status) == kTfOk; }

void OtherRowsOf(TfShapeContext* context, int index, TfStatus* status) {
  const OwnedShape input;
  const OwnedShape with_rows;
  const OwnedShape row;
  const OwnedShape result;
  const OwnedShape rows(Tf().ShapeInferenceContextVectorFromSize(context, kUnknownSize));
  Tf().ShapeInferenceContextGetInput(context, index, input.get(), status);
  if (!IsOk(status)) return;
  Tf().ShapeInferenceContextWithRankAtLeast(context, input.get(), 1, with_rows.get(), status);
  if (!IsOk(status)) return;
  Tf().ShapeInferenceContextSubshape(context, with_rows.get(), 1, kToTheEnd, row.get(), status);
  if (!IsOk(status)) return;
  Tf().ShapeInferenceContextConcatenateShapes(context, rows.get(), row.get(), result.get(), status);
  if (IsOk(status)) Tf().ShapeInferenceContextSetOutput(context, index, result.get(), status);
}

}  // namespace

void SameShapes(TfShapeContext* context, TfStatus* status) {
  const auto count = static_cast<int>(Tf().ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && IsOk(status); ++i) {
    const OwnedShape shape;
    Tf().ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (IsOk(status)) Tf().ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

void OtherRows(TfShapeContext* context, TfStatus* status) {
  const auto count = static_cast<int>(Tf().ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && IsOk(status); ++i) OtherRowsOf(context, i, status);
}

void OtherRowsAndSplits(TfShapeContext* context, TfStatus* status) {
  OtherRowsOf(context, 0, status);
  if (!IsOk(status)) return;
  const OwnedShape splits(Tf().ShapeInferenceContextVectorFromSize(context, kUnknownSize));
  Tf().ShapeInferenceContextSetOutput(context, 1, splits.get(), status);
}

void OneNumber(TfShapeContext* context, TfStatus* status) {
  const OwnedShape scalar(Tf().ShapeInferenceContextScalar(context));
  Tf().ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

void NoOutput(TfShapeContext*, TfStatus*) {}

}  // namespace coordd::tensorflow

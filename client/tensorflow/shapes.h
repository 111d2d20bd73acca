// What TensorFlow may know of a collective's result before it runs.
#pragma once

#include "client/tensorflow/tf_api.h"

namespace coordd::tensorflow {

// Each output as its input.
void SameShapes(TfShapeContext* context, TfStatus* status);

// Each output as its input, but for the number of rows; of inputs with rows.
void OtherRows(TfShapeContext* context, TfStatus* status);

// The first output as the first input, but for the number of rows; the second one is a vector.
void OtherRowsAndSplits(TfShapeContext* context, TfStatus* status);

void OneNumber(TfShapeContext* context, TfStatus* status);
void NoOutput(TfShapeContext* context, TfStatus* status);

}  // namespace coordd::tensorflow

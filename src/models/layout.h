// Where the values of a parameter are in the files of a family (config/hugging_face.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/shape.h"
#include "lancet/config/hugging_face.h"
#include "lancet/model/transformer.h"

namespace lancet::models {

// Rows of a tensor and of a parameter, which are taken as matrices: the last axis of a matrix has the columns, a vector
// has one column; the experts of a parameter are below each other.
struct Piece {
  std::string tensor;                      // its name in the file, with the family's prefix
  Shape shape;                             // of the tensor
  std::int64_t tensor_row = 0, count = 0;  // the first row and their number
  std::int64_t row = 0, step = 1;          // they are the rows `row`, `row + step`, ... of the parameter
  bool transposed = false;                 // the tensor's matrix is the transpose; it is one piece then
};

// All rows of a parameter but those that only pad the vocabulary.
struct Layout {
  std::vector<Piece> pieces;  // by expert, each of which has as many
  std::int64_t rows = 0;      // of an expert, or of a parameter without experts
  std::int64_t columns = 1;
};

// The layouts that a file may have, the one that is exported first. InternalError: the family's table lacks the
// parameter.
std::vector<Layout> layouts_of(const config::Model& model, const model::Parameter& parameter);

}  // namespace lancet::models

// Results that must be good, or must not be.
#pragma once
#include <catch2/catch.hpp>

#include "lancet/base/result.h"

namespace lancet::test {

// Fails the test with the error of a Result or a Status that holds one.
template <class T>
Result<T> good(Result<T> result) {
  if (!result.ok()) FAIL(result.error().message);
  return result;
}
inline void good(const Status& status) {
  if (!status.ok()) FAIL(status.error().message);
}
// The error of a Result or a Status, which must hold one.
template <class T>
Error refused(const Result<T>& result) {
  REQUIRE_FALSE(result.ok());
  return result.error();
}

}  // namespace lancet::test

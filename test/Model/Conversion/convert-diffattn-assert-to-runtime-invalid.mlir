// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --pass-pipeline="builtin.module(convert-diffattn-assert-to-runtime)"

func.func @assert_in_a_region(%p: i1, %q: i1) {
  scf.if %p {
    // expected-error @below {{expected to stand in the body of a function, but it is inside scf.if}}
    cf.assert %q, "no"
  }
  return
}

// RUN: diffattn-opt %s --diffattn-import-sizes --split-input-file --verify-diagnostics

// expected-error @below {{argument 0 of 'import_c4': expected 2 sizes in diffattn.size, one for each axis, but got ["a"]}}
func.func @import_c4(%x: tensor<?x?xf32> {diffattn.size = ["a"]}) {
  return
}

// -----

// expected-error @below {{argument 0 of 'import_c4_list': expected 1 sizes in diffattn.size, one for each axis, but got "a"}}
func.func @import_c4_list(%x: tensor<?xf32> {diffattn.size = "a"}) {
  return
}

// -----

// expected-error @below {{argument 0 of 'import_c4_kind': expected a name, a number or unit as a size of diffattn.size, but got 5.000000e-01 : f32}}
func.func @import_c4_kind(%x: tensor<?xf32> {diffattn.size = [0.5 : f32]}) {
  return
}

// -----

// expected-error @below {{argument 1 of 'import_c4_integer': expected diffattn.size as a name, on an integer, or as a list of sizes, on a tensor, but got 4 : i64 on 'i64'}}
func.func @import_c4_integer(%x: tensor<?xf32>, %n: i64 {diffattn.size = 4}) {
  return
}

// -----

// expected-error @below {{expected diffattn.size as a name, on an integer, or as a list of sizes, on a tensor, but got "n" on 'f32'}}
func.func @import_c4_float(%n: f32 {diffattn.size = "n"}) {
  return
}

// -----

// expected-error @below {{argument 0 of 'import_c5': expected size 5 on axis 1, as diffattn.size has it, but got 'tensor<?x4xf32>'}}
func.func @import_c5(%x: tensor<?x4xf32> {diffattn.size = ["a", 5]}) {
  return
}

// -----

// expected-error @below {{argument 1 of 'import_c5_names': expected size 4 on axis 0, as diffattn.size has it, but got 'tensor<5xf32>'}}
func.func @import_c5_names(%x: tensor<4xf32> {diffattn.size = ["a"]}, %y: tensor<5xf32> {diffattn.size = ["a"]}) {
  return
}

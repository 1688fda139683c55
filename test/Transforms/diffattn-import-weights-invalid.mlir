// RUN: diffattn-opt %s --diffattn-import-weights --split-input-file --verify-diagnostics

// expected-error @below {{argument 0 of 'import_c1_name': expected diffattn.weight to be the name of a weight, but got ""}}
func.func @import_c1_name(%w: tensor<4xf32> {diffattn.weight = ""}) {
  return
}

// -----

// expected-error @below {{argument 1 of 'import_c1_type': expected a tensor of known sizes as weight "w", but got 'tensor<?xf32>'}}
func.func @import_c1_type(%x: tensor<4xf32>, %w: tensor<?xf32> {diffattn.weight = "w"}) {
  return
}

// -----

// expected-error @below {{expected weights among the arguments of a function that has a body and is not called, but got 'import_c1_called'}}
func.func private @import_c1_called(%w: tensor<4xf32> {diffattn.weight = "w"}) {
  return
}
func.func @caller(%x: tensor<4xf32>) {
  call @import_c1_called(%x) : (tensor<4xf32>) -> ()
  return
}

// -----

// expected-error @below {{expected weights among the arguments of a function that has a body}}
func.func private @import_c1_body(tensor<4xf32> {diffattn.weight = "w"})

// -----

// expected-error @below {{argument 0 of 'import_c2': expected a name that no other symbol has, but got weight "f"}}
func.func @import_c2(%w: tensor<4xf32> {diffattn.weight = "f"}) {
  return
}
func.func private @f()

// -----

// expected-error @below {{argument 1 of 'import_c2_types': expected a name that no other symbol has, but got weight "w"}}
func.func @import_c2_types(%w: tensor<4xf32> {diffattn.weight = "w"}, %v: tensor<5xf32> {diffattn.weight = "w"}) {
  return
}

// -----

// expected-error @below {{argument 0 of 'import_c3': expected a weight that is not written to, but got diffattn.writable beside "w"}}
func.func @import_c3(%w: tensor<4xf32> {diffattn.weight = "w", diffattn.writable}) {
  return
}

// -----

// expected-error @below {{argument 0 of 'import_c3_value': expected diffattn.writable without a value, on a tensor, but got true on 'tensor<4xf32>'}}
func.func @import_c3_value(%x: tensor<4xf32> {diffattn.writable = true}) {
  return
}

// -----

// expected-error @below {{expected diffattn.writable without a value, on a tensor, but got unit on 'i64'}}
func.func @import_c3_number(%x: i64 {diffattn.writable}) {
  return
}

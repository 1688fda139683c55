#map12 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map14 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, 0)>
#map16 = affine_map<(d0, d1, d2, d3) -> ()>
#map20 = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
#map21 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d3, d4)>
#map22 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3, d4)>
#map23 = affine_map<(d0, d1, d2, d3) -> (d0, 0, d2, d3)>
#map24 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
func.func @main(%q: tensor<2x4x24x16xf16>, %k: tensor<2x2x24x16xf16>, %v: tensor<2x2x24x16xf16>, %visible: tensor<2x1x24x24xi1>, %lambda: tensor<f16>) -> tensor<2x24x2x32xf16> {
  %c0_i64 = arith.constant 0 : i64
  %cst = arith.constant 0.000000e+00 : f32
  %cst_0 = arith.constant 0.000000e+00 : f16
  %cst_1 = arith.constant 0xFF800000 : f32
  %true = arith.constant true
  %cst_3 = arith.constant dense<0.000000e+00> : tensor<2x4x24x24xf32>
  %cst_4 = arith.constant dense<0.000000e+00> : tensor<f16>
  %cst_5 = arith.constant dense<0xFC00> : tensor<f16>
  %cst_9 = arith.constant 0.79999999999999993 : f64
  %cst_11 = arith.constant 0xFFF0000000000000 : f64
  %cst_12 = arith.constant 1.000000e-05 : f64
  %cst_14 = arith.constant 5.000000e-01 : f32
  %cst_15 = arith.constant 3.200000e+01 : f16
  %61 = tensor.empty() : tensor<2x4x24x16xf16>
  %70 = tensor.empty() : tensor<2x2x24x16xf16>
  %extracted_slice_42 = tensor.extract_slice %v[0, 0, 0, 0] [2, 1, 24, 16] [1, 1, 1, 1] : tensor<2x2x24x16xf16> to tensor<2x1x24x16xf16>
  %extracted_slice_43 = tensor.extract_slice %v[0, 1, 0, 0] [2, 1, 24, 16] [1, 1, 1, 1] : tensor<2x2x24x16xf16> to tensor<2x1x24x16xf16>
  %collapsed = tensor.collapse_shape %extracted_slice_42 [[0, 1], [2], [3]] : tensor<2x1x24x16xf16> into tensor<2x24x16xf16>
  %84 = linalg.generic {indexing_maps = [#map20, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%collapsed : tensor<2x24x16xf16>) outs(%70 : tensor<2x2x24x16xf16>) {
  ^bb0(%in: f16, %out: f16):
    linalg.yield %in : f16
  } -> tensor<2x2x24x16xf16>
  %collapsed_44 = tensor.collapse_shape %extracted_slice_43 [[0, 1], [2], [3]] : tensor<2x1x24x16xf16> into tensor<2x24x16xf16>
  %85 = linalg.generic {indexing_maps = [#map20, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%collapsed_44 : tensor<2x24x16xf16>) outs(%70 : tensor<2x2x24x16xf16>) {
  ^bb0(%in: f16, %out: f16):
    linalg.yield %in : f16
  } -> tensor<2x2x24x16xf16>
  %86 = tensor.empty() : tensor<2x2x2x24x16xf16>
  %87 = linalg.generic {indexing_maps = [#map21, #map22], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%k : tensor<2x2x24x16xf16>) outs(%86 : tensor<2x2x2x24x16xf16>) {
  ^bb0(%in: f16, %out: f16):
    linalg.yield %in : f16
  } -> tensor<2x2x2x24x16xf16>
  %collapsed_45 = tensor.collapse_shape %87 [[0], [1, 2], [3], [4]] : tensor<2x2x2x24x16xf16> into tensor<2x4x24x16xf16>
  %88 = linalg.generic {indexing_maps = [#map21, #map22], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%84 : tensor<2x2x24x16xf16>) outs(%86 : tensor<2x2x2x24x16xf16>) {
  ^bb0(%in: f16, %out: f16):
    linalg.yield %in : f16
  } -> tensor<2x2x2x24x16xf16>
  %collapsed_46 = tensor.collapse_shape %88 [[0], [1, 2], [3], [4]] : tensor<2x2x2x24x16xf16> into tensor<2x4x24x16xf16>
  %89 = tensor.empty() : tensor<2x1x24x24xf16>
  %90 = linalg.generic {indexing_maps = [#map12, #map16, #map16, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%visible, %cst_4, %cst_5 : tensor<2x1x24x24xi1>, tensor<f16>, tensor<f16>) outs(%89 : tensor<2x1x24x24xf16>) {
  ^bb0(%in: i1, %in_111: f16, %in_112: f16, %out: f16):
    %306 = arith.select %in, %in_111, %in_112 : f16
    linalg.yield %306 : f16
  } -> tensor<2x1x24x24xf16>
  %91 = tensor.empty() : tensor<2x4x24x16xf32>
  %92 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%q : tensor<2x4x24x16xf16>) outs(%91 : tensor<2x4x24x16xf32>) {
  ^bb0(%in: f16, %out: f32):
    %306 = arith.extf %in : f16 to f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x16xf32>
  %93 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%collapsed_45 : tensor<2x4x24x16xf16>) outs(%91 : tensor<2x4x24x16xf32>) {
  ^bb0(%in: f16, %out: f32):
    %306 = arith.extf %in : f16 to f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x16xf32>
  %94 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%collapsed_46 : tensor<2x4x24x16xf16>) outs(%91 : tensor<2x4x24x16xf32>) {
  ^bb0(%in: f16, %out: f32):
    %306 = arith.extf %in : f16 to f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x16xf32>
  %95 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%92 : tensor<2x4x24x16xf32>) outs(%91 : tensor<2x4x24x16xf32>) {
  ^bb0(%in: f32, %out: f32):
    %306 = arith.mulf %in, %cst_14 : f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x16xf32>
  %96 = tensor.empty() : tensor<2x4x16x24xf32>
  %transposed_47 = linalg.transpose ins(%93 : tensor<2x4x24x16xf32>) outs(%96 : tensor<2x4x16x24xf32>) permutation = [0, 1, 3, 2] 
  %97 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%transposed_47 : tensor<2x4x16x24xf32>) outs(%96 : tensor<2x4x16x24xf32>) {
  ^bb0(%in: f32, %out: f32):
    %306 = arith.mulf %in, %cst_14 : f32
    linalg.yield %306 : f32
  } -> tensor<2x4x16x24xf32>
  %collapsed_48 = tensor.collapse_shape %95 [[0, 1], [2], [3]] : tensor<2x4x24x16xf32> into tensor<8x24x16xf32>
  %collapsed_49 = tensor.collapse_shape %97 [[0, 1], [2], [3]] : tensor<2x4x16x24xf32> into tensor<8x16x24xf32>
  %98 = tensor.empty() : tensor<8x24x24xf32>
  %99 = linalg.fill ins(%cst : f32) outs(%98 : tensor<8x24x24xf32>) -> tensor<8x24x24xf32>
  %100 = linalg.batch_matmul ins(%collapsed_48, %collapsed_49 : tensor<8x24x16xf32>, tensor<8x16x24xf32>) outs(%99 : tensor<8x24x24xf32>) -> tensor<8x24x24xf32>
  %expanded_50 = tensor.expand_shape %100 [[0, 1], [2], [3]] output_shape [2, 4, 24, 24] : tensor<8x24x24xf32> into tensor<2x4x24x24xf32>
  %101 = tensor.empty() : tensor<2x4x24x24xf32>
  %102 = linalg.generic {indexing_maps = [#map12, #map23, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_50, %90 : tensor<2x4x24x24xf32>, tensor<2x1x24x24xf16>) outs(%101 : tensor<2x4x24x24xf32>) {
  ^bb0(%in: f32, %in_111: f16, %out: f32):
    %306 = arith.extf %in_111 : f16 to f32
    %307 = arith.addf %in, %306 : f32
    linalg.yield %307 : f32
  } -> tensor<2x4x24x24xf32>
  %103 = tensor.empty() : tensor<2x4x24xi64>
  %104 = linalg.fill ins(%c0_i64 : i64) outs(%103 : tensor<2x4x24xi64>) -> tensor<2x4x24xi64>
  %105 = tensor.empty() : tensor<2x4x24xf32>
  %106 = linalg.fill ins(%cst_1 : f32) outs(%105 : tensor<2x4x24xf32>) -> tensor<2x4x24xf32>
  %107:2 = linalg.generic {indexing_maps = [#map12, #map24, #map24], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%102 : tensor<2x4x24x24xf32>) outs(%106, %104 : tensor<2x4x24xf32>, tensor<2x4x24xi64>) {
  ^bb0(%in: f32, %out: f32, %out_111: i64):
    %306 = linalg.index 3 : index
    %307 = arith.index_cast %306 : index to i64
    %308 = arith.maximumf %in, %out : f32
    %309 = arith.cmpf ogt, %in, %out : f32
    %310 = arith.select %309, %307, %out_111 : i64
    linalg.yield %308, %310 : f32, i64
  } -> (tensor<2x4x24xf32>, tensor<2x4x24xi64>)
  %expanded_51 = tensor.expand_shape %107#0 [[0], [1], [2, 3]] output_shape [2, 4, 24, 1] : tensor<2x4x24xf32> into tensor<2x4x24x1xf32>
  %108 = linalg.generic {indexing_maps = [#map12, #map14, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%102, %expanded_51 : tensor<2x4x24x24xf32>, tensor<2x4x24x1xf32>) outs(%101 : tensor<2x4x24x24xf32>) {
  ^bb0(%in: f32, %in_111: f32, %out: f32):
    %306 = arith.subf %in, %in_111 : f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x24xf32>
  %109 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%108 : tensor<2x4x24x24xf32>) outs(%101 : tensor<2x4x24x24xf32>) {
  ^bb0(%in: f32, %out: f32):
    %306 = math.exp %in : f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x24xf32>
  %110 = tensor.empty() : tensor<2x4x24x1xf32>
  %111 = linalg.fill ins(%cst : f32) outs(%110 : tensor<2x4x24x1xf32>) -> tensor<2x4x24x1xf32>
  %112 = linalg.generic {indexing_maps = [#map12, #map14], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%109 : tensor<2x4x24x24xf32>) outs(%111 : tensor<2x4x24x1xf32>) {
  ^bb0(%in: f32, %out: f32):
    %306 = arith.addf %in, %out : f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x1xf32>
  %113 = linalg.generic {indexing_maps = [#map12, #map14, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%109, %112 : tensor<2x4x24x24xf32>, tensor<2x4x24x1xf32>) outs(%101 : tensor<2x4x24x24xf32>) {
  ^bb0(%in: f32, %in_111: f32, %out: f32):
    %306 = arith.divf %in, %in_111 : f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x24xf32>
  %114 = tensor.empty() : tensor<2x4x24x24xi1>
  %115 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%102 : tensor<2x4x24x24xf32>) outs(%114 : tensor<2x4x24x24xi1>) {
  ^bb0(%in: f32, %out: i1):
    %306 = arith.extf %in : f32 to f64
    %307 = arith.cmpf oeq, %306, %cst_11 : f64
    linalg.yield %307 : i1
  } -> tensor<2x4x24x24xi1>
  %116 = tensor.empty() : tensor<2x4x24x1xi1>
  %117 = linalg.fill ins(%true : i1) outs(%116 : tensor<2x4x24x1xi1>) -> tensor<2x4x24x1xi1>
  %118 = linalg.generic {indexing_maps = [#map12, #map14], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%115 : tensor<2x4x24x24xi1>) outs(%117 : tensor<2x4x24x1xi1>) {
  ^bb0(%in: i1, %out: i1):
    %306 = arith.andi %in, %out : i1
    linalg.yield %306 : i1
  } -> tensor<2x4x24x1xi1>
  %119 = linalg.generic {indexing_maps = [#map14, #map12, #map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%118, %cst_3, %113 : tensor<2x4x24x1xi1>, tensor<2x4x24x24xf32>, tensor<2x4x24x24xf32>) outs(%101 : tensor<2x4x24x24xf32>) {
  ^bb0(%in: i1, %in_111: f32, %in_112: f32, %out: f32):
    %306 = arith.select %in, %in_111, %in_112 : f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x24xf32>
  %collapsed_52 = tensor.collapse_shape %119 [[0, 1], [2], [3]] : tensor<2x4x24x24xf32> into tensor<8x24x24xf32>
  %collapsed_53 = tensor.collapse_shape %94 [[0, 1], [2], [3]] : tensor<2x4x24x16xf32> into tensor<8x24x16xf32>
  %120 = tensor.empty() : tensor<8x24x16xf32>
  %121 = linalg.fill ins(%cst : f32) outs(%120 : tensor<8x24x16xf32>) -> tensor<8x24x16xf32>
  %122 = linalg.batch_matmul ins(%collapsed_52, %collapsed_53 : tensor<8x24x24xf32>, tensor<8x24x16xf32>) outs(%121 : tensor<8x24x16xf32>) -> tensor<8x24x16xf32>
  %expanded_54 = tensor.expand_shape %122 [[0, 1], [2], [3]] output_shape [2, 4, 24, 16] : tensor<8x24x16xf32> into tensor<2x4x24x16xf32>
  %123 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_54 : tensor<2x4x24x16xf32>) outs(%61 : tensor<2x4x24x16xf16>) {
  ^bb0(%in: f32, %out: f16):
    %306 = arith.truncf %in : f32 to f16
    linalg.yield %306 : f16
  } -> tensor<2x4x24x16xf16>
  %124 = tensor.empty() : tensor<2x24x4x16xf16>
  %transposed_55 = linalg.transpose ins(%123 : tensor<2x4x24x16xf16>) outs(%124 : tensor<2x24x4x16xf16>) permutation = [0, 2, 1, 3] 
  %125 = linalg.generic {indexing_maps = [#map21, #map22], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%85 : tensor<2x2x24x16xf16>) outs(%86 : tensor<2x2x2x24x16xf16>) {
  ^bb0(%in: f16, %out: f16):
    linalg.yield %in : f16
  } -> tensor<2x2x2x24x16xf16>
  %collapsed_56 = tensor.collapse_shape %125 [[0], [1, 2], [3], [4]] : tensor<2x2x2x24x16xf16> into tensor<2x4x24x16xf16>
  %126 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%collapsed_56 : tensor<2x4x24x16xf16>) outs(%91 : tensor<2x4x24x16xf32>) {
  ^bb0(%in: f16, %out: f32):
    %306 = arith.extf %in : f16 to f32
    linalg.yield %306 : f32
  } -> tensor<2x4x24x16xf32>
  %collapsed_57 = tensor.collapse_shape %126 [[0, 1], [2], [3]] : tensor<2x4x24x16xf32> into tensor<8x24x16xf32>
  %127 = linalg.batch_matmul ins(%collapsed_52, %collapsed_57 : tensor<8x24x24xf32>, tensor<8x24x16xf32>) outs(%121 : tensor<8x24x16xf32>) -> tensor<8x24x16xf32>
  %expanded_58 = tensor.expand_shape %127 [[0, 1], [2], [3]] output_shape [2, 4, 24, 16] : tensor<8x24x16xf32> into tensor<2x4x24x16xf32>
  %128 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_58 : tensor<2x4x24x16xf32>) outs(%61 : tensor<2x4x24x16xf16>) {
  ^bb0(%in: f32, %out: f16):
    %306 = arith.truncf %in : f32 to f16
    linalg.yield %306 : f16
  } -> tensor<2x4x24x16xf16>
  %transposed_59 = linalg.transpose ins(%128 : tensor<2x4x24x16xf16>) outs(%124 : tensor<2x24x4x16xf16>) permutation = [0, 2, 1, 3] 
  %concat_60 = tensor.concat dim(3) %transposed_55, %transposed_59 : (tensor<2x24x4x16xf16>, tensor<2x24x4x16xf16>) -> tensor<2x24x4x32xf16>
  %extracted_slice_61 = tensor.extract_slice %concat_60[0, 0, 0, 0] [2, 24, 2, 32] [1, 1, 1, 1] : tensor<2x24x4x32xf16> to tensor<2x24x2x32xf16>
  %extracted_slice_62 = tensor.extract_slice %concat_60[0, 0, 2, 0] [2, 24, 2, 32] [1, 1, 1, 1] : tensor<2x24x4x32xf16> to tensor<2x24x2x32xf16>
  %143 = tensor.empty() : tensor<2x24x2x32xf16>
  %144 = linalg.generic {indexing_maps = [#map16, #map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%lambda, %extracted_slice_62 : tensor<f16>, tensor<2x24x2x32xf16>) outs(%143 : tensor<2x24x2x32xf16>) {
  ^bb0(%in: f16, %in_111: f16, %out: f16):
    %306 = arith.mulf %in, %in_111 : f16
    linalg.yield %306 : f16
  } -> tensor<2x24x2x32xf16>
  %145 = linalg.generic {indexing_maps = [#map12, #map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice_61, %144 : tensor<2x24x2x32xf16>, tensor<2x24x2x32xf16>) outs(%143 : tensor<2x24x2x32xf16>) {
  ^bb0(%in: f16, %in_111: f16, %out: f16):
    %306 = arith.subf %in, %in_111 : f16
    linalg.yield %306 : f16
  } -> tensor<2x24x2x32xf16>
  %146 = linalg.generic {indexing_maps = [#map12, #map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%145, %145 : tensor<2x24x2x32xf16>, tensor<2x24x2x32xf16>) outs(%143 : tensor<2x24x2x32xf16>) {
  ^bb0(%in: f16, %in_111: f16, %out: f16):
    %306 = arith.mulf %in, %in_111 : f16
    linalg.yield %306 : f16
  } -> tensor<2x24x2x32xf16>
  %147 = tensor.empty() : tensor<2x24x2x1xf16>
  %148 = linalg.fill ins(%cst_0 : f16) outs(%147 : tensor<2x24x2x1xf16>) -> tensor<2x24x2x1xf16>
  %149 = linalg.generic {indexing_maps = [#map12, #map14], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%146 : tensor<2x24x2x32xf16>) outs(%148 : tensor<2x24x2x1xf16>) {
  ^bb0(%in: f16, %out: f16):
    %306 = arith.addf %in, %out : f16
    linalg.yield %306 : f16
  } -> tensor<2x24x2x1xf16>
  %150 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%149 : tensor<2x24x2x1xf16>) outs(%147 : tensor<2x24x2x1xf16>) {
  ^bb0(%in: f16, %out: f16):
    %306 = arith.divf %in, %cst_15 : f16
    linalg.yield %306 : f16
  } -> tensor<2x24x2x1xf16>
  %151 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%150 : tensor<2x24x2x1xf16>) outs(%147 : tensor<2x24x2x1xf16>) {
  ^bb0(%in: f16, %out: f16):
    %306 = arith.truncf %cst_12 : f64 to f16
    %307 = arith.addf %in, %306 : f16
    linalg.yield %307 : f16
  } -> tensor<2x24x2x1xf16>
  %152 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%151 : tensor<2x24x2x1xf16>) outs(%147 : tensor<2x24x2x1xf16>) {
  ^bb0(%in: f16, %out: f16):
    %306 = math.rsqrt %in : f16
    linalg.yield %306 : f16
  } -> tensor<2x24x2x1xf16>
  %153 = linalg.generic {indexing_maps = [#map12, #map14, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%145, %152 : tensor<2x24x2x32xf16>, tensor<2x24x2x1xf16>) outs(%143 : tensor<2x24x2x32xf16>) {
  ^bb0(%in: f16, %in_111: f16, %out: f16):
    %306 = arith.mulf %in, %in_111 : f16
    linalg.yield %306 : f16
  } -> tensor<2x24x2x32xf16>
  %154 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%153 : tensor<2x24x2x32xf16>) outs(%143 : tensor<2x24x2x32xf16>) {
  ^bb0(%in: f16, %out: f16):
    %306 = arith.truncf %cst_9 : f64 to f16
    %307 = arith.mulf %in, %306 : f16
    linalg.yield %307 : f16
  } -> tensor<2x24x2x32xf16>
  return %154 : tensor<2x24x2x32xf16>
}

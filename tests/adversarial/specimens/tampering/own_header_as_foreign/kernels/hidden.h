#pragma once
// Where the build folder is called "workspace", this is the same file by another path.
static torch::Tensor kept;

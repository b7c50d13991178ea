// Names of what is compiled once per instruction set: POOLGRAD_TABLE(kernels) is kernels_avx2, ...
#pragma once

#define POOLGRAD_JOIN_(name, isa) name##_##isa
#define POOLGRAD_JOIN(name, isa) POOLGRAD_JOIN_(name, isa)
#define POOLGRAD_TABLE(name) POOLGRAD_JOIN(name, POOLGRAD_ISA)
#define POOLGRAD_NAME_(isa) #isa
#define POOLGRAD_NAME(isa) POOLGRAD_NAME_(isa)

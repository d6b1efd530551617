/* SPDX-License-Identifier: BSD-3-Clause */
/* A random network: forks, sums, values that several ops read, ReLUs with and without another
 * reader, batch norms that can and cannot be fused. */
#ifndef BERTH_TESTS_RANDOM_GRAPH_H
#define BERTH_TESTS_RANDOM_GRAPH_H

#include <stdint.h>

#include "train/model/graph.h"

/* The same seed gives the same graph. ops: at least so many. Freed with graph_free. */
struct graph *random_graph(uint64_t seed, const struct shape *input, int classes, int ops);

#endif

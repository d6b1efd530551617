/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/spelling.h"

#include <string.h>

int spelling_distance(const char *a, const char *b)
{
	int row[64];
	size_t la = strlen(a), lb = strlen(b);

	if (la > 62 || lb > 62)
		return 9;
	for (size_t j = 0; j <= lb; j++)
		row[j] = (int)j;
	for (size_t i = 1; i <= la; i++) {
		int corner = row[0];

		row[0] = (int)i;
		for (size_t j = 1; j <= lb; j++) {
			int best = corner + (a[i - 1] != b[j - 1]);

			corner = row[j];
			best = row[j] + 1 < best ? row[j] + 1 : best;
			row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
		}
	}
	return row[lb];
}

const char *spelling_closest(const char *word, const char *const *names, size_t count)
{
	int best = strlen(word) < 5 ? 2 : 3; /* one more than what is taken for a typing error */
	const char *closest = NULL;

	for (size_t i = 0; i < count; i++) {
		int distance = names[i] ? spelling_distance(word, names[i]) : best;

		if (distance < best) {
			best = distance;
			closest = names[i];
		}
	}
	return closest;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/symbols.h"

#include <dlfcn.h>
#include <string.h>

const char *symbols_find(void *library, const struct symbol *symbols, size_t count)
{
	const char *missing = NULL;

	for (size_t i = 0; i < count; i++) {
		void *symbol = dlsym(library, symbols[i].name);

		if (!symbol && symbols[i].needed && !missing)
			missing = symbols[i].name;
		memcpy(symbols[i].to, &symbol, sizeof symbol);
	}
	return missing;
}

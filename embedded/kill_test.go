package embedded

const childEnv = "WEIR_EMBEDDED_TEST_CHILD"

func childMain(string) int { return 0 }

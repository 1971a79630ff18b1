"""The paper's tables, one runnable file per data set; results/ holds what they found."""
